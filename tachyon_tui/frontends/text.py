"""Text from outside (model, compiler, program, source, file names) made safe for a terminal, as plain text."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.cells import cell_len, set_cell_size

LINE_LIMIT = 2000
"""Characters of one line that are kept unless a caller asks for fewer."""
TAB = 4

_COLOURS = re.compile("(?:\x1b\\[|\x9b)[0-9;:?]*[A-Za-z]")
"""Colour and cursor sequences. Longer ones only lose their escape character: what they hold stays visible, so
that nothing can be hidden from a person who reviews a diff."""
_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # format characters, bidi
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2"  # Arabic and Syriac signs that reorder what stands beside them
    "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # letters without an appearance
    "\ufe00-\ufe0f\u180b-\u180d\u180f"  # variation selectors
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"  # tags and further variation selectors
    "]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Bytes that are no UTF-8, as Python keeps them; they cannot be written."""


def clean(text: str, limit: int | None = None) -> str:
    """``text`` without anything a terminal would obey or not show.

    Control characters (ESC, C1, DEL), bidi controls and zero-width characters go, tabs become spaces, CR LF and CR
    become newlines, and each line is cut to ``limit`` characters (`LINE_LIMIT` unless given) with an ellipsis.
    Markup such as ``smem[tid]`` stays as written.
    """
    text = _COLOURS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _SURROGATE.sub("\ufffd", _UNSAFE.sub("", text)).expandtabs(TAB)
    most = LINE_LIMIT if limit is None else limit
    if len(text) <= most:
        return text
    return "\n".join(
        line if len(line) <= most else line[: max(most - 1, 0)] + "…" for line in text.split("\n")
    )


def one_line(text: str, cells: int) -> str:
    """``text`` cleaned, on one line with single spaces, at most ``cells`` terminal cells wide."""
    flat = " ".join(clean(text, cells * 8).split())
    if cell_len(flat) <= cells:
        return flat
    return set_cell_size(flat, max(cells - 1, 0)).rstrip() + "…"


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """One-line ``text`` broken into lines of ``width`` cells, later ones behind ``indent``.

    Breaks at spaces, and anywhere between wide (Chinese) characters.
    """
    lines: list[str] = []
    line = ""
    for word in re.findall(r"\s*(?:[\u1100-\uffdc]|[^\s\u1100-\uffdc]+)", text):
        if line and cell_len(line + word) > width:
            lines.append(line)
            line = ""
        line += word if line else (indent if lines else "") + word.lstrip()
        while cell_len(line) > width:
            head = set_cell_size(line, width).rstrip()
            if len(head) <= len(indent):  # narrower than one character: better too wide than endless
                break
            lines.append(head)
            line = indent + line[len(head) :]
    return [*lines, line] if line.strip() else lines


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equal length as columns two spaces apart, one line each."""
    widths = [max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell + " " * (size - cell_len(cell)) for cell, size in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


_ASCII = str.maketrans(
    {
        "✓": "+",
        "✗": "x",
        "↩": "<",
        "─": "-",
        "…": "...",
        "→": "->",
        "█": "#",
        "·": "-",
        "±": "+-",
        "│": "|",
        "└": "`",
    }
)


def ascii_symbols(text: str) -> str:
    """``text`` with our own symbols replaced by ASCII; words in other scripts stay."""
    return text.translate(_ASCII)


class LineWriter:
    """Writes whole lines to a stream; a closed pipe or a full disk is remembered, not raised."""

    def __init__(self, stream: TextIO | None, *, ascii: bool = False) -> None:  # noqa: A002
        self._stream = stream
        self.problem = ""
        """Why nothing more is written (a full disk); empty also where only the reader went away."""
        self._encoding = (stream.encoding if stream is not None else None) or "utf-8"
        self._ascii = ascii or not _can_show("✓↩─", self._encoding)

    def line(self, text: str = "") -> None:
        """Write one line (or several, with newlines inside) and flush."""
        if self._stream is None:
            return
        if self._ascii:
            text = ascii_symbols(text)
        try:
            self._stream.write(text.encode(self._encoding, "replace").decode(self._encoding) + "\n")
            self._stream.flush()
        except OSError as error:
            self._let_go(self._stream)
            self._stream = None
            self.problem = "" if isinstance(error, BrokenPipeError) else str(error.strerror or error)

    @staticmethod
    def _let_go(stream: TextIO) -> None:
        """Send what is still buffered to nowhere: Python would complain about it at exit."""
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def _can_show(symbols: str, encoding: str) -> bool:
    try:
        symbols.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
