"""Printed text as tokens: numbers, words, punctuation, times of day; and which of the numbers are times or rates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Token(NamedTuple):
    """One token of a line."""

    kind: str
    """``number``, ``word``, ``clock`` (a date or time of day) or ``mark``."""
    text: str
    start: int
    """Where it begins in its line."""


_TOKEN = re.compile(
    r"""
      (?P<clock>(?<![\w.])(?:\d{4}-\d\d-\d\d(?:[T\ ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?
                           |\d{1,2}:\d\d:\d\d(?:\.\d+)?)(?!\w))
    | (?P<word>(?<!\w)(?!\d+[eE]\d+\b)(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b   # a hash
             | (?<=\d)[xX](?=\d))                                                       # as in 640x480
    | (?P<number>(?:(?<![\w.)\]])[-+])?(?:(?<![^\W\d])|(?<=\d[xX]))(?:
          0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?(?:[pP][-+]?\d+)?
        | (?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?
        | (?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?
        | (?:inf(?:inity)?|nan(?:\([\w-]*\))?)(?!\w)))
    | (?P<name>[^\W\d]\w*)
    | (?P<mark>\S)
    """,
    re.VERBOSE | re.IGNORECASE,
)

_SECONDS = r"[nuµμm]?s|[numµμ]?secs?|(?:nano|micro|milli)?seconds?"
_UNIT = re.compile(
    rf"{_SECONDS}|minutes?|hours?|hrs?|[kmg]?hz|[kmgtpe]?flops?|[gt]ops|[kmgt]i?bps|fps|ips|cycles?|ticks?|clocks?|clk",
    re.IGNORECASE,
)
_GLUED_UNIT = re.compile(rf"{_UNIT.pattern}|min|h", re.IGNORECASE)
"""What may directly follow the digits, as in 5min; set apart, "min" is as often a minimum."""
_LABEL = re.compile(
    rf"(?!m?s$|ns$|us$)(?:{_UNIT.pattern})|time|timing|timer|elapsed|durations?|latency|latencies|runtime|took|"
    r"wall|walltime|throughput|bandwidth|speed|speedup|rate|perf|performance|frequency|freq",
    re.IGNORECASE,
)
_SHORT_UNIT = re.compile(r"[mnuµμ]s|s", re.IGNORECASE)
_NO_RATE = re.compile(
    r"errors?|err|fail(?:ure|ed|s)?|pass(?:ed)?|hit|miss(?:es)?|mismatch(?:es)?|success|accuracy|loss|learning|match(?:es)?",
    re.IGNORECASE,
)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-zµμ]+")
_BETWEEN = frozenset("=:()[]~<>/|-@*'\"")
"""Marks that may stand between a number and its label or unit."""


def tokenise(line: str) -> tuple[Token, ...]:
    """The tokens of one line. Spaces only part tokens."""
    return tuple(_tokens(line))


def _tokens(line: str) -> Iterator[Token]:
    for found in _TOKEN.finditer(line):
        kind = found.lastgroup or "mark"
        yield Token("word" if kind == "name" else kind, found[0], found.start())


def number(text: str) -> float:
    """The value of a number token."""
    plain = text.replace(",", "").lower()
    if "0x" in plain:
        return float.fromhex(plain)
    return math.nan if "nan" in plain else float(plain)


def same_number(expected: str, got: str, rtol: float, atol: float) -> bool:
    """Whether two printed numbers agree within ``atol + rtol * |expected|``.

    NaN agrees with nothing, infinity with itself. Whole numbers with grouped digits must be equal: ``1,234,567`` may
    as well be a list of three numbers, of which a relative tolerance would check only the first.
    """
    a, b = number(expected), number(got)
    if math.isnan(a) or math.isnan(b):
        return False
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b) or any("," in text and "." not in text for text in (expected, got)):
        return False
    return abs(a - b) <= atol + rtol * abs(a)


def timed(tokens: Sequence[Token]) -> frozenset[int]:
    """Indices of numbers that stand with a unit of time or rate, or beside a word of time or rate.

    ``2.27ms``, ``12 GB/s``, ``time_ms=2.26``, ``Elapsed time: 3``, ``Bandwidth (GB/s): 100``; but not the 0 of
    ``mismatches=0 time_ms=2.26``, nor that of ``error rate: 0``.
    """
    numbers = (i for i, token in enumerate(tokens) if token.kind == "number")
    return frozenset(i for i in numbers if _unit(tokens, i) or _labelled(tokens, i))


def _unit(tokens: Sequence[Token], at: int) -> bool:
    """Whether a unit follows the number, and is not itself the label of what comes next."""
    token, i = tokens[at], at + 1
    glued = i < len(tokens) and tokens[i].start == token.start + len(token.text)
    if i < len(tokens) and tokens[i].text in "([":
        i += 1
    if i >= len(tokens) or tokens[i].kind != "word":
        return False
    end = i + 1
    rate = end + 1 < len(tokens) and tokens[end].text == "/" and _is_per(tokens[end + 1].text)
    if rate:
        end += 2
    elif not (_GLUED_UNIT if glued else _UNIT).fullmatch(tokens[i].text):
        return False
    return glued or end >= len(tokens) or tokens[end].text not in ("=", ":")


def _is_per(text: str) -> bool:
    return bool(re.fullmatch(rf"{_SECONDS}|cycle|clk|clock", text, re.IGNORECASE))


def _labelled(tokens: Sequence[Token], at: int) -> bool:
    """Whether the nearest word to the left is one of time or rate; brackets, colons and the like may be between."""
    i = at - 1
    while i >= 0 and tokens[i].kind == "mark" and tokens[i].text in _BETWEEN:
        i -= 1
    if i < 0 or tokens[i].kind != "word":
        return False
    named_by_mark = any(token.text in "=:" for token in tokens[i + 1 : at])
    if not named_by_mark and at + 1 < len(tokens) and tokens[at + 1].kind == "word":
        return False  # as in "the first time 0 errors": the number counts what comes next
    word = tokens[i].text
    before = tokens[i - 1] if i else None
    if before and before.kind == "number" and not named_by_mark and _GLUED_UNIT.fullmatch(word):
        return False  # the unit of the number before
    if before and before.text == "/" and _is_per(word):
        return True
    if _SHORT_UNIT.fullmatch(word):
        return word.lower() != "s" or bool(before and before.text in "([")
    parts = _PARTS.findall(word) or [word]
    phrase = parts + (_PARTS.findall(before.text) if before and before.kind == "word" else [])
    if any(_NO_RATE.fullmatch(part) for part in phrase):
        return False
    named = any(_LABEL.fullmatch(part) for part in parts)
    return named or bool(len(parts) > 1 and re.fullmatch(r"[mnuµμ]s", parts[-1], re.IGNORECASE))
