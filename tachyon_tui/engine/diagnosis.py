"""Diagnoses: which launches are worth an ncu run, and what became of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import RunRecord
from tachyon_tui.core.profile import KernelProfile, Report
from tachyon_tui.engine.charge import Scope
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.profilers.base import ChildEnd, Diagnoser, DiagnosisOutcome, Wanted

SHARE = 0.90
MOST_KERNELS = 5


def choose_launches(record: RunRecord, scope: Scope) -> tuple[Wanted, ...]:
    """The target kernels that make up 90 % of target time, at most 5, one launch of median duration each."""
    launched: Counter[str] = Counter()
    charged: dict[str, list[tuple[int, int]]] = {}
    for launch in sorted(record.launches, key=lambda item: item.start):
        if launch.key not in scope.outside:
            timed = (launch.end - launch.start, launched[launch.mangled])
            charged.setdefault(launch.mangled, []).append(timed)
        launched[launch.mangled] += 1
    ordered = sorted(charged.items(), key=lambda item: -_ns(item[1]))
    total = sum(_ns(launches) for launches in charged.values())
    wanted: list[Wanted] = []
    covered = 0
    for name, launches in ordered[:MOST_KERNELS]:
        if wanted and covered >= SHARE * total:
            break
        _duration, index = sorted(launches)[(len(launches) - 1) // 2]
        wanted.append(Wanted(name, index))
        covered += _ns(launches)
    return tuple(wanted)


def _ns(launches: Sequence[tuple[int, int]]) -> int:
    return sum(duration for duration, _index in launches)


class Diagnosis:
    """Runs the diagnoser and records what it found."""

    def __init__(
        self,
        diagnoser: Diagnoser | None,
        log: EventLog,
        ledger: Ledger,
        folder: Path,
        run: Callable[[Sequence[str], Mapping[str, str], float, Path], ChildEnd],
        floor: Callable[[KernelProfile], KernelProfile],
    ) -> None:
        """``folder`` is the session's directory of reports; ``floor`` adds the floor to a profile."""
        self._diagnoser = diagnoser
        self._log = log
        self._ledger = ledger
        self._folder = folder
        self._run = run
        self._floor = floor
        self._count = 0
        self._shown_fix = ""

    @property
    def available(self) -> bool:
        """False when there is no ncu, or the first try showed that it can never work here."""
        return self._diagnoser is not None

    def with_floor(self, kernels: Sequence[KernelProfile]) -> tuple[KernelProfile, ...]:
        """The profiles with their physical floor."""
        return tuple(self._floor(kernel) for kernel in kernels)

    def give_up(self) -> None:
        """Make no further ncu run in this session."""
        self._diagnoser = None

    def diagnose(
        self,
        argv: Sequence[str],
        wanted: Sequence[Wanted],
        who: Literal["baseline", "best", "candidate"],
        round_number: int | None,
    ) -> DiagnosisOutcome | None:
        """Profile the wanted launches; None when there is nothing to profile with or nothing wanted."""
        if self._diagnoser is None or not wanted:
            return None
        self._count += 1
        label = "baseline" if round_number is None else f"round-{round_number:03d}-{who}"
        output = self._folder / f"{self._count:03d}-{label}"
        output.mkdir(parents=True, exist_ok=True)

        def progress(text: str, fraction: float) -> None:
            self._log.progress("ncu", text, fraction, round_number)

        with self._ledger.spend("ncu"):
            outcome = self._diagnoser.diagnose(argv, wanted, output, self._run, progress)
        kernels = self.with_floor(outcome.report.kernels) if outcome.report else ()
        fix = outcome.fix if outcome.fix != self._shown_fix else ""
        self._shown_fix = outcome.fix or self._shown_fix
        self._log.write(
            e.Diagnosed(
                who=who,
                round=round_number,
                status=outcome.status,
                message=outcome.message,
                fix=fix,
                report=str(output.relative_to(self._folder.parent)),
                seconds=outcome.seconds,
                passes=outcome.passes,
                kernels=kernels,
            )
        )
        return outcome

    def adopt(self, report: Report, path: Path) -> tuple[KernelProfile, ...]:
        """Take an existing report as the baseline's diagnosis."""
        kernels = self.with_floor(report.kernels)
        self._log.write(
            e.Diagnosed(
                who="baseline",
                status="ok",
                message=_("read from {file}; its times are not compared with timed runs").format(file=path),
                report=str(path),
                kernels=kernels,
            )
        )
        return kernels


def floor_ms_per_run(profiles: Sequence[KernelProfile], given_bytes: float | None) -> float | None:
    """The time (ms) in which the user's `[floor] bytes` can move at the DRAM peak of this GPU; None when unknown."""
    if given_bytes is None:
        return None
    for profile in profiles:
        peak = profile.metrics.get("dram_peak")
        if (
            peak is not None
            and isinstance(peak.value, float)
            and math.isfinite(peak.value)
            and peak.value > 0
        ):
            return given_bytes / peak.value * 1000
    return None
