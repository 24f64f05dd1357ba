"""One text replaced by another in a source file: exactly, or with the small slips that models make.

Lines end at "\\n" alone; a "\\r" before it belongs to the line's end and is kept as the file has it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tachyon_tui.core.i18n import _

MAX_FILE_BYTES = 1024 * 1024
MAX_EDIT_CHARS = 256 * 1024
SHOWN_MATCHES = 8
SHOWN_LINES = 12
COMPARED_LINES = 4000
"""How many different lines are compared by likeness at most; beyond it only equal lines tell."""
COMPARED_CHARS = 200

How = Literal["exact", "trailing spaces", "indentation"]


class EditProblem(Exception):
    """The edit was not made; the message says why and what would do."""


@dataclass(frozen=True)
class EditResult:
    """The text after the edit."""

    text: str
    line: int
    """First line of the place, counted from 1."""
    how: How
    """What had to be overlooked to find the place."""


def apply_edit(text: str, old: str, new: str) -> EditResult:
    """Replace the one place where ``old`` stands in ``text`` by ``new``.

    Tried in turn: exactly; whole lines, ignoring spaces at their ends; whole lines, ignoring their indentation too
    (``new`` is then indented as the file is). The file keeps its kind of line ends and whether it ends with one.
    Raises `EditProblem` when ``old`` is blank, stands nowhere or more than once, or when nothing would change.
    """
    if not old.strip():
        raise EditProblem(_("old_text is blank; give the lines that are to be replaced."))
    if len(old) > MAX_EDIT_CHARS or len(new) > MAX_EDIT_CHARS:
        raise EditProblem(
            _("The text is longer than {limit} characters; make several smaller edits.").format(
                limit=MAX_EDIT_CHARS
            )
        )
    why = unusable_text(new)
    if why:
        raise EditProblem(_("new_text cannot be written: {why}.").format(why=why))
    if old == new:
        raise EditProblem(_("old_text and new_text are the same; nothing would change."))
    result = _exact(text, old, new) or _by_lines(text, old, new)
    if result is None:
        raise EditProblem(_not_found(text, old))
    if result.text == text:
        raise EditProblem(_("The file already reads like that; nothing would change."))
    if len(result.text.encode()) > MAX_FILE_BYTES:
        raise EditProblem(_("The file would be larger than {limit} bytes.").format(limit=MAX_FILE_BYTES))
    return result


def unusable_text(text: str) -> str:
    """Why ``text`` cannot stand in a source file; empty when it can."""
    if "\0" in text:
        return _("it holds a NUL character")
    if any("\ud800" <= char <= "\udfff" for char in text):
        return _("it holds half of a surrogate pair")
    return ""


def decode_source(data: bytes) -> str:
    """The text of a source file. Raises `EditProblem` when it is too large or no text in UTF-8."""
    if len(data) > MAX_FILE_BYTES:
        raise EditProblem(_("The file is larger than {limit} bytes.").format(limit=MAX_FILE_BYTES))
    if b"\0" in data:
        raise EditProblem(_("The file is binary: it holds NUL bytes."))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EditProblem(
            _("The file is not in UTF-8: byte {at} is {byte:#04x}. Convert it first.").format(
                at=error.start, byte=data[error.start]
            )
        ) from error


def _exact(text: str, old: str, new: str) -> EditResult | None:
    forms = (_with_crlf(old), old) if _mostly_crlf(text) else (old, _with_crlf(old))
    for wanted in dict.fromkeys(forms):
        places = _occurrences(text, wanted)
        if len(places) > 1:
            raise EditProblem(_ambiguous([text.count("\n", 0, place) + 1 for place in places]))
        if not places:
            continue
        at = places[0]
        around = text[at : at + len(wanted)]
        crlf = "\r\n" in around or ("\n" not in around and _mostly_crlf(text))
        result = text[:at] + (_with_crlf(new) if crlf else new) + text[at + len(wanted) :]
        if at + len(wanted) == len(text):
            result = _keep_last_end(text, result)
        return EditResult(result, text.count("\n", 0, at) + 1, "exact")
    return None


def _occurrences(text: str, wanted: str) -> list[int]:
    """Where it stands, overlapping places included; a few more than are shown at most."""
    places: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(places) <= SHOWN_MATCHES:
        # Half of a line's end is no place.
        if not (wanted.startswith("\n") and text[at - 1 : at] == "\r"):
            places.append(at)
        at = text.find(wanted, at + 1)
    return places


def _by_lines(text: str, old: str, new: str) -> EditResult | None:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    wanted = _lines(old)
    replacement = _lines(new) if new else []
    rungs: tuple[tuple[How, Callable[[str], str]], ...] = (
        ("trailing spaces", str.rstrip),
        ("indentation", str.strip),
    )
    for how, key in rungs:
        starts = _windows([key(line) for line in lines], [key(line) for line in wanted])
        found = []
        for start in starts:
            indented: list[str] | None = replacement
            if how == "indentation":
                indented = _reindent(wanted, lines[start : start + len(wanted)], replacement)
            if indented is not None:
                found.append((start, indented))
        if len(found) > 1:
            raise EditProblem(_ambiguous([start + 1 for start, _indented in found]))
        if found:
            start, indented_lines = found[0]
            end = start + len(wanted)
            crlf = lines[start].endswith("\r") or (start == len(lines) - 1 and _mostly_crlf(text))
            put = [line.rstrip("\r") + ("\r" if crlf else "") for line in indented_lines]
            result = "\n".join([*lines[:start], *put, *lines[end:]])
            if text.endswith("\n") and result:
                result += "\n"
            elif end == len(lines):
                result = result.rstrip("\r")
            return EditResult(result, start + 1, how)
    return None


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if len(lines) > 1 and lines[-1] == "" else lines


def _windows(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where the run of lines ``wanted`` begins in ``lines``."""
    # The rarest line first: a window is compared only where that one is equal.
    counts: dict[str, int] = {}
    for line in lines:
        counts[line] = counts.get(line, 0) + 1
    rare = min(range(len(wanted)), key=lambda i: counts.get(wanted[i], 0))
    last = len(lines) - len(wanted)
    starts = (i - rare for i, line in enumerate(lines) if line == wanted[rare])
    return [i for i in starts if 0 <= i <= last and list(lines[i : i + len(wanted)]) == list(wanted)]


def _reindent(old: Sequence[str], there: Sequence[str], new: Sequence[str]) -> list[str] | None:
    """``new`` indented as ``there`` is where ``old`` was indented otherwise; None when no rule fits both."""
    table: dict[str, str] = {}
    for mine, theirs in zip(old, there, strict=True):
        if mine.strip() and table.setdefault(_indent(mine), _indent(theirs)) != _indent(theirs):
            return None
    result = []
    for line in new:
        indent = _indent(line)
        known = [known for known in table if indent.startswith(known)]
        if not line.strip():
            result.append("")
        elif known:
            base = max(known, key=len)
            result.append(table[base] + indent[len(base) :] + line.lstrip())
        else:
            # Shallower than anything in old: take away what the shallowest of them was moved by.
            least = min(table, key=len)
            shift = len(table[least]) - len(least)
            result.append((table[least][: max(0, len(indent) + shift)]) + line.lstrip())
    return result


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _mostly_crlf(text: str) -> bool:
    return text.count("\r\n") * 2 > text.count("\n")


def _keep_last_end(before: str, after: str) -> str:
    if not after:
        return after
    if before.endswith("\n") and not after.endswith("\n"):
        return after + ("\r\n" if before.endswith("\r\n") else "\n")
    if not before.endswith("\n") and after.endswith("\n"):
        return after[:-2] if after.endswith("\r\n") else after[:-1]
    return after


def _ambiguous(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:SHOWN_MATCHES])) + (", …" if len(lines) > SHOWN_MATCHES else "")
    return _("old_text stands at more than one place (lines {lines}); add lines around it.").format(
        lines=shown
    )


def _not_found(text: str, old: str) -> str:
    lines = text.split("\n")
    wanted = [line.strip() for line in _lines(old)]
    start = _nearest(lines, wanted)
    if start is None:
        return _("old_text stands nowhere in the file, and nothing is like it; read the file again.")
    end = min(len(lines), start + min(len(wanted) + 2, SHOWN_LINES))
    start = max(0, start - 1)
    width = len(str(end))
    shown = "\n".join(f"{i + 1:>{width}}: {lines[i].rstrip()[:COMPARED_CHARS]}" for i in range(start, end))
    return _("old_text stands nowhere in the file. The nearest lines are:\n{lines}").format(lines=shown)


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Where the lines most like ``wanted`` begin: most equal lines, else the line most like its longest one."""
    places: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(i)
    votes: dict[int, int] = {}
    for offset, line in enumerate(wanted):
        # A line that is everywhere ("}") says nothing about the place.
        if line and len(places.get(line, ())) <= 50:
            for i in places.get(line, ()):
                votes[i - offset] = votes.get(i - offset, 0) + len(line)
    if votes:
        return max(0, max(votes, key=lambda start: (votes[start], -start)))
    longest = max(range(len(wanted)), key=lambda i: len(wanted[i]))
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[longest][:COMPARED_CHARS])
    best, where = 0.5, None
    for line in list(places)[:COMPARED_LINES]:
        matcher.set_seq1(line[:COMPARED_CHARS])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, where = matcher.ratio(), places[line][0]
    return None if where is None else max(0, where - longest)
