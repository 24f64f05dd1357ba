"""When a run's first look at the GPU may be the last one of the run before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachyon_tui.core.session import CommandReader, Journal, create_session
from tachyon_tui.core.settings import Settings
from tachyon_tui.engine import bench as module
from tachyon_tui.engine.bench import Bench, Sample
from tachyon_tui.engine.control import Control
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.profilers.gpu import GpuMonitor, GpuState
from tachyon_tui.profilers.stopwatch import Stopwatch

THROTTLED = 0x008


class FakeMonitor(GpuMonitor):
    """Answers from a list, the last answer for ever."""

    def __init__(self, *reasons: int) -> None:
        super().__init__()
        self.looks = 0
        self._reasons = reasons

    def sample(self, own_pids: object = ()) -> GpuState | None:
        self.looks += 1
        return GpuState(
            "one GPU", "GPU-0", 0, reason_bits=self._reasons[min(self.looks, len(self._reasons)) - 1]
        )


def two_runs(folder: Path, monitor: GpuMonitor) -> tuple[Sample, Sample]:
    paths = create_session(folder, "true", {})
    journal = Journal(paths)
    log = EventLog(journal)
    control = Control(CommandReader(paths), log, 100.0)
    bench = Bench(Settings(), folder, folder, paths, ["true"], control, log, Ledger(), Stopwatch(), monitor)
    runs = bench.run_in_place("baseline", None), bench.run_in_place("baseline", None)
    journal.close()
    return runs


@pytest.mark.parametrize(
    ("fresh", "reasons", "looks"),
    [
        (1e9, [0], 3),
        (0.0, [0], 4),
        (1e9, [0, THROTTLED, 0, 0], 4),
    ],
    ids=["right after an undisturbed run", "some time later", "after a disturbed run"],
)
def test_looks_of_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: float, reasons: list[int], looks: int
) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", fresh)
    monitor = FakeMonitor(*reasons)
    first, second = two_runs(tmp_path, monitor)
    assert monitor.looks == looks
    assert bool(first.marks) is (THROTTLED in reasons)
    assert second.marks == ()
