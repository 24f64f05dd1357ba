"""The two instruments: a `Timer` says how long, a `Diagnoser` says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tachyon_tui.core.launches import Instrument, RunRecord
from tachyon_tui.core.profile import Report


@dataclass(frozen=True)
class TimedCommand:
    """The user's command as it must be started to be timed."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables to add to the program's environment."""


@dataclass(frozen=True)
class Finished:
    """What a timer may know of a run that ended."""

    exit_code: int
    seconds: float
    """Wall time of the process in s."""
    stdout: Path
    log: Path
    """Where ncu's own lines went; does not exist for the other instruments."""


class Timer(Protocol):
    """Times one run of the program. The same object serves the whole session."""

    instrument: Instrument

    def prepare(self, argv: Sequence[str], scratch: Path) -> TimedCommand:
        """The command to start; ``scratch`` is an empty folder for this one run."""
        ...

    def read(self, scratch: Path, finished: Finished) -> RunRecord:
        """The record of the run; never raises for what a program did: it says so in ``problem``."""
        ...


@dataclass(frozen=True)
class Wanted:
    """One launch to diagnose."""

    mangled: str
    """Mangled name, or the demangled one where no mangled name is known."""
    index: int
    """Which launch of that kernel, counted from 0."""


@dataclass(frozen=True)
class ChildEnd:
    """How a child process ended."""

    exit_code: int
    timed_out: bool
    seconds: float
    tail: str
    """Last lines of its output."""


RunChild = Callable[[Sequence[str], Mapping[str, str], float, Path], ChildEnd]
"""Runs ``argv`` with extra ``env`` for at most ``timeout`` s, output to the file; the engine passes its own."""

Progress = Callable[[str, float], None]
"""Called with a text and a fraction (0 to 1)."""


@dataclass(frozen=True)
class DiagnosisOutcome:
    """What came of a diagnosis."""

    status: str
    """``ok``, ``partial``, ``no_kernels``, ``permission``, ``driver``, ``unsupported_gpu``, ``busy``, ``timeout``,
    ``app_failed``, ``ncu_failed``, ``bad_option``, ``report_exists``, ``report_bad``, ``executable_missing`` or
    ``ncu_missing``."""
    report: Report | None = None
    message: str = ""
    fix: str = ""
    """The next thing to type or to change, empty when all is well."""
    available_kernels: tuple[str, ...] = ()
    passes: int = 0
    seconds: float = 0.0
    log: str = ""
    """The lines of ncu that the classification rests on."""


class Diagnoser(Protocol):
    """Explains where the time of chosen launches goes."""

    def diagnose(
        self, argv: Sequence[str], wanted: Sequence[Wanted], output: Path, run: RunChild, progress: Progress
    ) -> DiagnosisOutcome:
        """Profile the wanted launches of the program; reports and logs go to the folder ``output``."""
        ...
