"""Times with ncu where the activity recorder cannot be used: one pass, clocks and caches left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import Instrument, Launch, LaunchKey, RunRecord
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.settings import NcuSettings
from tachyon_tui.profilers.base import Finished, TimedCommand
from tachyon_tui.profilers.metrics import TIME
from tachyon_tui.profilers.ncu import ENVIRONMENT, command, tool
from tachyon_tui.profilers.ncu_log import classify, ncu_text
from tachyon_tui.profilers.reader import read_report_apart
from tachyon_tui.profilers.report import ReportError

LIMIT = 200
"""Launches timed in one run; profiling each costs milliseconds and memory."""
REPORT_NAME = "timing.ncu-rep"
LOG_NAME = "ncu.log"
_TAIL_BYTES = 8192


class NcuTimer:
    """A `Timer` for machines without CUPTI's activity records.

    ncu knows how long each launch took but not when it started, and it runs launches one after the other.
    They are laid end to end on a clock that starts at 0, so the union of the intervals is their sum: overlap
    of streams is not seen. Copies, memsets and code hashes are not seen either. Where the limit of launches
    is reached, `RunRecord.truncated` is set: then only means per launch compare.

    The exit code of the command is the program's own, as ncu passes it on; where ncu itself failed it is 1
    and ``problem`` says so.
    """

    instrument: Instrument = "ncu"

    def __init__(self, settings: NcuSettings, limit: int = LIMIT) -> None:
        self._settings = settings
        self._limit = limit

    def prepare(self, argv: Sequence[str], scratch: Path) -> TimedCommand:
        """The command to start; ncu's report and log go to ``scratch``.

        :raises NcuMissing: there is no ncu.
        """
        options = [
            f"--metrics={TIME[0]}",
            "--cache-control=none",
            "--rename-kernels=off",
            f"--launch-count={self._limit}",
        ]
        folder = scratch.resolve()
        ncu = tool(self._settings)
        line = command(ncu, self._settings, options, folder / REPORT_NAME, folder / LOG_NAME, argv)
        return TimedCommand(argv=tuple(line), env=ENVIRONMENT)

    def read(self, scratch: Path, finished: Finished) -> RunRecord:
        """The record of the run; what is wrong with it is in ``problem``."""
        text = ncu_text(scratch / LOG_NAME, _tail(finished.stdout))
        try:
            ncu = tool(self._settings)
            report = read_report_apart(scratch / REPORT_NAME, ncu.install, ncu.version)
        except ReportError as error:
            verdict = classify(text, finished.exit_code, timed_out=False, report_ok=False)
            problem = str(error) if verdict.status == "report_bad" else f"{verdict.message} {verdict.fix}"
            return RunRecord(instrument="ncu", problem=problem)
        launches: list[Launch] = []
        clock = 0
        for profile in report.kernels:
            launches.append(_launch(profile, clock))
            clock = launches[-1].end
        verdict = classify(text, finished.exit_code, timed_out=False, report_ok=True)
        problem = "" if verdict.status in {"ok", "partial"} else f"{verdict.message} {verdict.fix}"
        failed = next((launch.key.name for launch in launches if launch.end == launch.start), None)
        if failed is not None:
            problem = _("The kernel {name} has no time: it failed.").format(name=failed)
        return RunRecord(
            instrument="ncu",
            launches=tuple(launches),
            problem=problem,
            processes=max(1, text.count("==PROF== Connected to process")),
            truncated=len(launches) >= self._limit,
        )


def _launch(profile: KernelProfile, start: int) -> Launch:
    ns = round((profile.gpu_time_ms or 0) * 1e6)
    key = LaunchKey(profile.name, profile.grid, profile.block)
    return Launch(key, profile.mangled, start, start + ns)


def _tail(file: Path) -> str:
    """The last bytes of what the command printed, where ncu puts errors of its command line."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            return stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
