"""What one run of the program did on the GPU, as a timer recorded it: launches, copies, memsets, code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Instrument = Literal["cupti", "ncu", "stopwatch"]
Dim3 = tuple[int, int, int]


class LaunchKey(NamedTuple):
    """Identity of a group of launches."""

    name: str
    """Full demangled name."""
    grid: Dim3
    block: Dim3


class Launch(NamedTuple):
    """One kernel launch; times in ns on one clock. ``end == start`` marks a launch that faulted."""

    key: LaunchKey
    mangled: str
    start: int
    end: int
    device: int = 0
    stream: int = 0


@dataclass(frozen=True, order=True)
class Transfer:
    """One group of copies or memsets: what kind, how many, how many bytes together."""

    kind: str
    """``HtoD``, ``DtoH``, ``DtoD``, ``HtoH``, ``PtoP``, ``memset`` or ``other``."""
    count: int
    bytes: int
    ns: int = 0
    """Sum of their durations."""


@dataclass(frozen=True)
class RunRecord:
    """The record of one run."""

    instrument: Instrument
    launches: tuple[Launch, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    """One entry per kind, sorted by kind."""
    code: frozenset[str] = frozenset()
    """Hashes of the code sections of each loaded module; empty where they cannot be read."""
    problem: str = ""
    """Why this record is no evidence (no file, no end mark, dropped records, a launch of duration 0);
    empty when sound."""
    tick_ns: float = 32.0
    """Resolution of the clock in ns."""
    value_ms: float | None = None
    """The stopwatch's time in ms; None for the GPU instruments."""
    processes: int = 1
    truncated: bool = False
    """True when the timer's limit was reached, so later launches may be missing: only means per launch compare."""


def busy_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Length in ns of the union of ``(start, end)`` intervals."""
    total = 0
    reach = None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total += end - start
            reach = end
        elif end > reach:
            total += end - reach
            reach = end
    return total
