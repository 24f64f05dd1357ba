"""The learned oracle: what every run of the baseline printed alike, every candidate must print too."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

from tachyon_tui.core.i18n import _
from tachyon_tui.core.units import bytes_text
from tachyon_tui.workspace.problems import Problem
from tachyon_tui.workspace.tokens import Token, same_number, timed, tokenise

Mode = Literal["learned", "exact", "off"]
MAX_CHARS = 1024**2
"""How much of an output is compared, from its beginning."""
MAX_MISMATCHES = 20
ALIGNED_LINES = 2000
"""More lines than this are not aligned with each other; what differs there is told by its first line."""
SHOWN_CHARS = 160


@dataclass(frozen=True)
class Mismatch:
    """One thing that was printed otherwise; ``expected`` is empty for an added line, ``got`` for a lost one."""

    expected: str
    got: str
    where: str

    def __str__(self) -> str:
        if not self.expected:
            return _("{where}: {got!r} was not printed before").format(where=self.where, got=self.got)
        if not self.got:
            return _("{where}: {expected!r} is missing").format(where=self.where, expected=self.expected)
        return _("{where}: {got!r} instead of {expected!r}").format(
            where=self.where, got=self.got, expected=self.expected
        )


@dataclass(frozen=True)
class _Line:
    number: int
    text: str
    tokens: tuple[Token, ...]
    shape: tuple[str, ...]
    """Its words and marks, with a sign for each number."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its shape without the words."""
        return tuple(token.text if token.kind == "mark" else token.kind for token in self.tokens)


@dataclass(frozen=True)
class _Pattern:
    """A line that every run must print."""

    line: _Line
    free: frozenset[int]
    """Tokens that may be anything."""
    seen: tuple[frozenset[str], ...]
    """What runs printed for each token."""

    def fits(self, line: _Line) -> bool:
        """Whether it is this line but for its numbers and free tokens."""
        return len(line.tokens) == len(self.line.tokens) and all(
            i in self.free or mine == theirs
            for i, (mine, theirs) in enumerate(zip(self.line.shape, line.shape, strict=True))
        )

    def shown(self) -> str:
        """The line with a star for every free token."""
        text = self.line.text
        for i in sorted(self.free, reverse=True):
            token = self.line.tokens[i]
            text = text[: token.start] + "*" + text[token.start + len(token.text) :]
        return " ".join(text.split())


@dataclass(frozen=True)
class _Learned:
    patterns: tuple[_Pattern, ...] = ()
    floating: frozenset[tuple[str, ...]] = frozenset()
    """Shapes and kinds of lines that come and go: they may be printed anywhere, any number of times."""

    def requires(self, line: _Line) -> _Pattern | None:
        """The first pattern that the line fits."""
        exact = self._by_shape.get(line.shape)
        return exact or next((pattern for pattern in self._with_free_words if pattern.fits(line)), None)

    @cached_property
    def _by_shape(self) -> dict[tuple[str, ...], _Pattern]:
        return {pattern.line.shape: pattern for pattern in reversed(self.patterns)}

    @cached_property
    def _with_free_words(self) -> list[_Pattern]:
        return [p for p in self.patterns if any(p.line.tokens[i].kind == "word" for i in p.free)]


class Oracle:
    """Checks stdout token by token.

    Words and marks must be equal and numbers within tolerance, line by line and in order. Free are: tokens that
    varied between runs of the baseline (numbers that agree within the tolerance did not vary), numbers with or
    beside a word or unit of time or rate, dates and times of day, lines that come and go or change their place, and
    what an ``ignore`` pattern matches. Spaces and blank lines do not count.
    """

    def __init__(
        self,
        *,
        mode: Mode = "learned",
        ignore: Sequence[str] = (),
        rtol: float = 1e-4,
        atol: float = 1e-8,
        limit: int = MAX_CHARS,
    ) -> None:
        """Raises `Problem` for a pattern that is no regular expression."""
        self.mode = mode
        self._rtol = rtol
        self._atol = atol
        self._limit = limit
        self._texts: list[str] = []
        self._learned = _Learned()
        self._counted: tuple[int, int] | None = None
        self._known: dict[str, tuple[str, tuple[Token, ...], tuple[str, ...]]] = {}
        """Rows of learned outputs as read: most rows of a candidate's are the same."""
        try:
            self._ignore = [re.compile(pattern) for pattern in ignore]
        except re.error as error:
            raise Problem(
                _("[verify] ignore holds {pattern!r}, which is no regular expression: {why}.").format(
                    pattern=error.pattern, why=error.msg
                ),
                _("Put a backslash before characters that are meant as they are, such as ( or *."),
            ) from error

    @classmethod
    def learn(
        cls,
        texts: Sequence[str],
        *,
        mode: Mode = "learned",
        ignore: Sequence[str] = (),
        rtol: float = 1e-4,
        atol: float = 1e-8,
        limit: int = MAX_CHARS,
    ) -> Oracle:
        """The oracle of the given outputs. Raises `Problem` when they differ and ``mode`` is ``exact``."""
        oracle = cls(mode=mode, ignore=ignore, rtol=rtol, atol=atol, limit=limit)
        oracle._texts = list(texts)
        if mode == "exact" and len({oracle._stripped(text) for text in texts}) > 1:
            raise Problem(
                _("The output differs from run to run, so that it cannot be compared exactly."),
                _('Use [verify] stdout = "learned", or free what varies with [verify] ignore.'),
            )
        oracle._relearn()
        return oracle

    @property
    def empty(self) -> bool:
        """True when nothing of the output is checked."""
        if self.mode == "exact":
            return not self._texts
        return self._counts()[0] == 0

    @property
    def truncated(self) -> bool:
        """True when outputs were longer than what is compared."""
        return any(self._is_cut(text) for text in self._texts)

    def check(self, text: str) -> tuple[Mismatch, ...]:
        """What a run printed otherwise, at most 20 of them; empty when all is well."""
        if self.mode == "off" or not self._texts or text in self._texts:
            return ()
        if self.mode == "exact":
            return self._check_exact(text)
        required = self._learned.patterns
        lines = [line for line in self._lines(text) if not self._floats(line)]
        if self._is_cut(text):
            required = required[: len(lines)]
        if self.truncated:
            lines = lines[: len(required)] if len(lines) > len(required) else lines
        if len(lines) == len(required) and all(map(_Pattern.fits, required, lines)):
            found = [
                m for pattern, line in zip(required, lines, strict=True) for m in self._numbers(pattern, line)
            ]
        else:
            found = self._compare(required, lines)
        return tuple(found[:MAX_MISMATCHES])

    def contradict(self, text: str) -> tuple[Mismatch, ...]:
        """Unlearn what this run of an incumbent prints otherwise; return what that was."""
        found = self.check(text)
        if found:
            self._texts.append(text)
            self._relearn()
        return found

    def describe(self) -> str:
        """What is checked, in one line."""
        if self.mode == "exact":
            what = _("the whole output, exactly")
        elif self.mode == "off" or self.empty:
            return _("checks the exit code alone: nothing of the output is compared")
        else:
            stable, total = self._counts()
            first = (pattern.shown() for pattern in self._learned.patterns if _stable(pattern))
            shown = " | ".join(islice(first, SHOWN_CHARS))
            what = _("{stable} of {total} tokens: {lines}").format(
                stable=stable,
                total=total,
                lines=shown[:SHOWN_CHARS] + ("…" if len(shown) > SHOWN_CHARS else ""),
            )
        cut = _(" (of the first {size})").format(size=bytes_text(self._limit)) if self.truncated else ""
        return _("checks {what}").format(what=what) + cut

    def _counts(self) -> tuple[int, int]:
        """Words and numbers that are checked, and all of them; lines that come and go count as unchecked."""
        if self._counted is None:
            stable = sum(_stable(pattern) for pattern in self._learned.patterns)
            lines = self._lines(self._texts[0]) if self._texts else []
            self._counted = stable, sum(token.kind != "mark" for line in lines for token in line.tokens)
        return self._counted

    def _relearn(self) -> None:
        if self.mode == "learned" and self._texts:
            rows = {row for text in self._texts for row in text[: self._limit].split("\n")}
            self._known = {row: self._known.get(row) or self._read(row) for row in rows}
            runs = [self._lines(text) for text in dict.fromkeys(self._texts)]
            if self.truncated:
                shortest = min(len(run) for run in runs)
                runs = [run[:shortest] for run in runs]
            self._learned = self._patterns(runs)
            self._counted = None

    def _is_cut(self, text: str) -> bool:
        return len(text) > self._limit

    def _stripped(self, text: str) -> str:
        for pattern in self._ignore:
            text = pattern.sub("", text)
        return text

    def _lines(self, text: str) -> list[_Line]:
        rows = text[: self._limit].split("\n")
        if self._is_cut(text):
            rows.pop()  # it may be cut in the middle
        read = [(number, self._known.get(row) or self._read(row)) for number, row in enumerate(rows, 1)]
        return [_Line(number, *parts) for number, parts in read if parts[1]]

    def _read(self, row: str) -> tuple[str, tuple[Token, ...], tuple[str, ...]]:
        """The row without what is ignored, its tokens and its shape."""
        text = self._stripped(row)
        tokens = tokenise(text)
        return text, tokens, tuple(t.text if t.kind in ("word", "mark") else f"<{t.kind}>" for t in tokens)

    def _patterns(self, runs: Sequence[Sequence[_Line]]) -> _Learned:
        common = _common_shapes(runs)
        kept = [[line for line in run if line.shape in common] for run in runs]
        gaps = [_gaps(run, common) for run in runs]
        floating: list[_Line] = []
        patterns: dict[int, list[_Pattern]] = {}
        for gap in sorted(set().union(*gaps)):
            columns = [each.get(gap, []) for each in gaps]
            merged = self._merge(columns)
            if merged:
                patterns[gap] = merged
            else:
                floating.extend(line for column in columns for line in column)
        # A line that comes and goes must not be taken for one that has its place.
        for gap, some in list(patterns.items()):
            kinds = {line.kinds for line in floating}
            if any(pattern.line.kinds in kinds or any(map(pattern.fits, floating)) for pattern in some):
                floating.extend(pattern.line for pattern in patterns.pop(gap))
        result: list[_Pattern] = []
        for gap in range(len(kept[0]) + 1):
            result.extend(patterns.get(gap, ()))
            if gap < len(kept[0]):
                result.append(self._pattern([run[gap] for run in kept]))
        shapes = frozenset(line.shape for line in floating) | frozenset(line.kinds for line in floating)
        return _Learned(tuple(result), shapes)

    def _merge(self, columns: Sequence[Sequence[_Line]]) -> list[_Pattern]:
        """Patterns for lines of which only words vary; empty when these are not the same lines in every run."""
        if len({len(column) for column in columns}) > 1:
            return []
        rows = list(zip(*columns, strict=True))
        if any(len({len(line.tokens) for line in row}) > 1 for row in rows):
            return []
        return [self._pattern(row) for row in rows]

    def _pattern(self, lines: Sequence[_Line]) -> _Pattern:
        first = lines[0]
        free = set(timed(first.tokens)) | {i for i, token in enumerate(first.tokens) if token.kind == "clock"}
        seen = []
        for i in range(len(first.tokens)):
            column = [line.tokens[i] for line in lines]
            texts = frozenset(token.text for token in column)
            if any(token.kind != column[0].kind for token in column) or (
                len(texts) > 1 and not self._agree(column)
            ):
                free.add(i)
            elif column[0].kind == "number" and not same_number(column[0].text, column[0].text, 0, 0):
                free.add(i)  # NaN is no evidence
            seen.append(texts)
        return _Pattern(first, frozenset(free), tuple(seen))

    def _agree(self, column: Sequence[Token]) -> bool:
        first = column[0]
        return first.kind == "number" and all(
            same_number(first.text, token.text, self._rtol, self._atol) for token in column
        )

    def _floats(self, line: _Line) -> bool:
        learned = self._learned
        if line.shape not in learned.floating and line.kinds not in learned.floating:
            return False
        return not learned.requires(line)

    def _numbers(self, pattern: _Pattern, line: _Line) -> list[Mismatch]:
        return [
            Mismatch(self._context(pattern.line, i), self._context(line, i), _where(line))
            for i, token in enumerate(line.tokens)
            if i not in pattern.free
            and token.kind == "number"
            and not any(same_number(text, token.text, self._rtol, self._atol) for text in pattern.seen[i])
        ]

    def _context(self, line: _Line, at: int) -> str:
        """A token with the word before it: ``mismatches=3``."""
        start = next((line.tokens[i].start for i in range(at, -1, -1) if line.tokens[i].kind == "word"), 0)
        token = line.tokens[at]
        return line.text[start : token.start + len(token.text)].strip()[-80:]

    def _compare(self, required: Sequence[_Pattern], lines: Sequence[_Line]) -> list[Mismatch]:
        """Lines lost, added or changed, found by aligning the two sequences."""
        head = 0
        while head < min(len(required), len(lines)) and required[head].fits(lines[head]):
            head += 1
        tail = 0
        while tail < min(len(required), len(lines)) - head and required[-1 - tail].fits(lines[-1 - tail]):
            tail += 1
        found = [m for p, x in zip(required[:head], lines[:head], strict=True) for m in self._numbers(p, x)]
        left, right = required[head : len(required) - tail], lines[head : len(lines) - tail]
        if max(len(left), len(right)) > ALIGNED_LINES:
            found += self._differ(left[:1], right[:1])
        else:
            fitting = [self._learned.requires(line) for line in right]
            keys = [
                pattern.line.shape if pattern else line.shape
                for pattern, line in zip(fitting, right, strict=True)
            ]
            matcher = difflib.SequenceMatcher(None, [p.line.shape for p in left], keys, autojunk=False)
            for tag, a, b, c, d in matcher.get_opcodes():
                if tag == "equal":
                    pairs = zip(left[a:b], right[c:d], strict=True)
                    found += [m for pattern, line in pairs for m in self._numbers(pattern, line)]
                else:
                    found += self._differ(left[a:b], right[c:d])
        if tail:
            pairs = zip(required[-tail:], lines[-tail:], strict=True)
            found += [m for pattern, line in pairs for m in self._numbers(pattern, line)]
        return found

    def _differ(self, left: Sequence[_Pattern], right: Sequence[_Line]) -> list[Mismatch]:
        if len(left) == len(right):
            return [
                Mismatch(p.shown()[:200], x.text.strip()[:200], _where(x))
                for p, x in zip(left, right, strict=True)
            ]
        lost = [Mismatch(p.shown()[:200], "", _where(p.line)) for p in left]
        return lost + [Mismatch("", line.text.strip()[:200], _where(line)) for line in right]

    def _check_exact(self, text: str) -> tuple[Mismatch, ...]:
        got = self._stripped(text)
        wanted = [self._stripped(each) for each in self._texts]
        if got in wanted:
            return ()
        old, new = wanted[0].split("\n"), got.split("\n")
        at = next(
            (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
        )
        end = _("end of output")
        return (
            Mismatch(
                old[at][:200] if at < len(old) and old[at] else end,
                new[at][:200] if at < len(new) and new[at] else end,
                _("line {number}").format(number=at + 1),
            ),
        )


def _common_shapes(runs: Sequence[Sequence[_Line]]) -> frozenset[tuple[str, ...]]:
    """Shapes that every run printed equally often and in the same order."""
    counts = [Counter(line.shape for line in run) for run in runs]
    common = {shape for shape, count in counts[0].items() if all(each[shape] == count for each in counts)}
    for run in runs[1:]:
        while True:
            first = [line.shape for line in runs[0] if line.shape in common]
            other = [line.shape for line in run if line.shape in common]
            if first == other:
                break
            common -= _out_of_order(first, other)
    return frozenset(common)


def _out_of_order(first: Sequence[tuple[str, ...]], other: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    head = next(i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b)
    tail = next(i for i, (a, b) in enumerate(zip(reversed(first), reversed(other), strict=True)) if a != b)
    left, right = first[head : len(first) - tail], other[head : len(other) - tail]
    if len(left) > ALIGNED_LINES:
        return set(left)
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    matched = {i for block in blocks for i in range(block.a, block.a + block.size)}
    return {shape for i, shape in enumerate(left) if i not in matched}


def _gaps(run: Sequence[_Line], common: frozenset[tuple[str, ...]]) -> dict[int, list[_Line]]:
    """Lines of other shapes, by the number of common lines before them."""
    gaps: dict[int, list[_Line]] = {}
    before = 0
    for line in run:
        if line.shape in common:
            before += 1
        else:
            gaps.setdefault(before, []).append(line)
    return gaps


def _stable(pattern: _Pattern) -> int:
    return sum(token.kind != "mark" and i not in pattern.free for i, token in enumerate(pattern.line.tokens))


def _where(line: _Line) -> str:
    return _("line {number}").format(number=line.number)
