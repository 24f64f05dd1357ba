"""Timing with ncu, against a fake of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tachyon_tui.core.launches import RunRecord, busy_ns
from tachyon_tui.core.profile import Report
from tachyon_tui.core.settings import NcuSettings
from tachyon_tui.profilers import ncu_timer
from tachyon_tui.profilers.base import Finished
from tachyon_tui.profilers.ncu import NcuMissing
from tachyon_tui.profilers.ncu_timer import LOG_NAME, REPORT_NAME, NcuTimer
from tachyon_tui.profilers.reader import read_report_apart

FAKE = str(Path(__file__).parent.parent / "doubles" / "fake_ncu.py")
PROGRAM = [sys.executable, "-c", "print('mismatches=0')"]
TRANSPOSE_NS = [177_760, 994_240, 995_136, 994_880, 996_064, 992_448]


def timed(
    scratch: Path,
    program: Sequence[str] = PROGRAM,
    settings: NcuSettings | None = None,
    limit: int = 200,
) -> tuple[RunRecord, Finished]:
    timer = NcuTimer(settings or NcuSettings(path=FAKE), limit)
    start = timer.prepare(program, scratch)
    out = scratch / "stdout"
    with out.open("wb") as stream:
        done = subprocess.run(
            start.argv, stdout=stream, stderr=stream, env={**os.environ, **start.env}, timeout=60, check=False
        )
    finished = Finished(done.returncode, 0.1, out, scratch / LOG_NAME)
    return timer.read(scratch, finished), finished


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "ok")
    monkeypatch.setenv("FAKE_NCU_REPORT", "transpose-time-only-6-launches")


def test_launches_are_laid_end_to_end(tmp_path: Path) -> None:
    record, finished = timed(tmp_path)
    assert (record.problem, record.instrument, record.processes, record.truncated) == ("", "ncu", 1, False)
    assert [launch.end - launch.start for launch in record.launches] == TRANSPOSE_NS
    assert busy_ns((launch.start, launch.end) for launch in record.launches) == sum(TRANSPOSE_NS)
    assert finished.exit_code == 0


def test_identity_of_a_launch(tmp_path: Path) -> None:
    launch = timed(tmp_path)[0].launches[1]
    assert launch.key == ("transpose_naive(const float *, float *, int, int)", (256, 1024, 1), (32, 8, 1))
    assert launch.mangled == "_Z15transpose_naivePKfPfii"
    assert (launch.device, launch.stream) == (0, 0)


def test_output_of_the_program_stays_clean(tmp_path: Path) -> None:
    _record, finished = timed(tmp_path)
    assert finished.stdout.read_text() == "mismatches=0\n"


def test_command_line(tmp_path: Path) -> None:
    settings = NcuSettings(path=FAKE, args="--nvtx", metrics=("ignored.sum",), set="full")
    argv = NcuTimer(settings).prepare(["./app"], tmp_path).argv
    assert argv[-3:] == ("--nvtx", "--", "./app")
    assert "--metrics=gpu__time_duration.sum" in argv
    assert "--launch-count=200" in argv
    assert "--cache-control=none" in argv
    assert "--clock-control=none" in argv
    assert not [word for word in argv if word.startswith(("--set", "--kill"))]
    assert argv[argv.index("-o") + 1] == str(tmp_path / REPORT_NAME)


@pytest.mark.parametrize("code", [1, 3])
def test_exit_code_of_the_program_is_passed_on(tmp_path: Path, code: int) -> None:
    record, finished = timed(tmp_path, [sys.executable, "-c", f"raise SystemExit({code})"])
    assert finished.exit_code == code
    assert record.problem == ""
    assert len(record.launches) == 6


def test_limit_reached_is_marked(tmp_path: Path) -> None:
    assert timed(tmp_path, limit=6)[0].truncated


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("permission", "performance counters"),
        ("busy", "Another program holds"),
        ("driver", "does not fit the GPU driver"),
        ("unsupported", "does not support this GPU"),
        ("no-kernels", "No kernel was launched"),
        ("garbage-report", "is not an Nsight Compute report"),
        ("truncated-report", "damaged or incomplete"),
        ("illegal-access", "failed while it was profiled"),
        ("no-report", "wrote no report"),
    ],
)
def test_no_evidence_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_NCU", mode)
    record, _finished = timed(tmp_path)
    assert record.launches == ()
    assert words in record.problem


def test_refused_command_line_has_a_reason(tmp_path: Path) -> None:
    record, finished = timed(tmp_path, settings=NcuSettings(path=FAKE, args="--no-such-thing"))
    assert finished.exit_code == 1
    assert "refused its command line" in record.problem


def test_missing_ncu(tmp_path: Path) -> None:
    with pytest.raises(NcuMissing):
        NcuTimer(NcuSettings(path=str(tmp_path / "gone"))).prepare(PROGRAM, tmp_path)


def test_launch_without_time_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_report(path: Path, install: Path | None, ncu_version: tuple[int, ...]) -> Report:
        report = read_report_apart(path, install, ncu_version)
        first, second, *rest = report.kernels
        failed = second.model_copy(update={"gpu_time_ms": None})
        return report.model_copy(update={"kernels": (first, failed, *rest)})

    monkeypatch.setattr(ncu_timer, "read_report_apart", fake_report)
    problem = timed(tmp_path)[0].problem
    assert "transpose_naive(const float *, float *, int, int) has no time" in problem
