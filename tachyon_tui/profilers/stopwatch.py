"""Time without a GPU: a number that the program prints, else the wall time of its process. A program can fool it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import Instrument, RunRecord
from tachyon_tui.profilers.base import Finished, TimedCommand

UNITS_MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ns": 1e-6}
"""Unit words that a pattern's group ``unit`` may match, in ms."""
TAIL_BYTES = 8 << 20
"""Only the end of a longer output is searched."""


class Stopwatch:
    """The `Timer` that believes what the program prints.

    ``pattern`` is a regular expression of Python (``^`` and ``$`` at line ends), searched in the program's stdout;
    the last match counts. The time is its group ``value``, or its first group, in ms, unless a group ``unit``
    matched one of s, ms, us, µs, ns: ``time: (?P<value>[0-9.]+) *(?P<unit>ms|us|s)?``. Without a pattern the wall
    time is taken.
    """

    instrument: Instrument = "stopwatch"

    def __init__(self, pattern: str = "") -> None:
        """Raises ValueError for a pattern that is no regular expression or has no group."""
        self._pattern: re.Pattern[str] | None = None
        if not pattern:
            return
        try:
            self._pattern = re.compile(pattern, re.MULTILINE)
        except re.error as error:
            raise ValueError(
                _("[stopwatch] pattern is no regular expression: {error}. Correct {pattern!r}.").format(
                    error=error, pattern=pattern
                )
            ) from error
        if not self._value_group:
            raise ValueError(
                _(
                    "[stopwatch] pattern {pattern!r} has no group for the time: put the number in parentheses, "
                    "as in 'time: ([0-9.]+) ms'."
                ).format(pattern=pattern)
            )

    @property
    def _value_group(self) -> int:
        """Number of the group that holds the time; 0 where there is none."""
        if self._pattern is None:
            return 0
        named = self._pattern.groupindex
        others = (n for n in range(1, self._pattern.groups + 1) if n != named.get("unit"))
        return named.get("value") or next(others, 0)

    def prepare(self, argv: Sequence[str], scratch: Path) -> TimedCommand:
        """The command as it is."""
        return TimedCommand(tuple(argv))

    def read(self, scratch: Path, finished: Finished) -> RunRecord:
        """The time of the run in ``value_ms``; a missing, unreadable or non-positive one is a problem."""
        if self._pattern is None:
            return _record(finished.seconds * 1e3, str(finished.seconds))
        try:
            text = _tail(finished.stdout)
        except OSError as error:
            return _bad(_("The program's output could not be read: {error}.").format(error=error))
        match = None
        for match in self._pattern.finditer(text):  # noqa: B007 (the last match counts)
            pass
        if match is None:
            return _bad(
                _("[stopwatch] pattern {pattern!r} was not found in the program's output.").format(
                    pattern=self._pattern.pattern
                )
            )
        return _convert(match[self._value_group], match.groupdict().get("unit"))


def _convert(value: str | None, unit: str | None) -> RunRecord:
    if unit and unit not in UNITS_MS:
        return _bad(
            _("The program's time has the unknown unit {unit!r}; use one of {units}.").format(
                unit=unit, units=", ".join(UNITS_MS)
            )
        )
    try:
        number = float(value or "")
    except ValueError:
        return _bad(_("The program's time {value!r} is no number.").format(value=value))
    return _record(number * UNITS_MS[unit or "ms"], value or "")


def _record(ms: float, text: str) -> RunRecord:
    if not (math.isfinite(ms) and ms > 0):
        return _bad(_("The program's time {value!r} is no positive number.").format(value=text))
    return RunRecord(instrument="stopwatch", value_ms=ms)


def _bad(problem: str) -> RunRecord:
    return RunRecord(instrument="stopwatch", problem=problem)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
