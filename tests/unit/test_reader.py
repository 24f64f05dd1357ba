"""Reports are read in a process of their own, which may crash without harm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tachyon_tui.core.i18n import set_language
from tachyon_tui.profilers import reader
from tachyon_tui.profilers.reader import read_report_apart
from tachyon_tui.profilers.report import ReportError, read_report

REPORT = "transpose-time-only-6-launches.ncu-rep"
KILLED = "import os, signal\ndef load_report(path):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
RAISES = "def load_report(path):\n    raise ValueError(path)\n"
GOOD = """
class Fake:
    def name(self, base): return "fake_kernel"
    def metric_names(self): return ["m"]
    def metric_by_name(self, name): return None
    def source_info(self, pc): return None
    def source_files(self): return {}
    def rule_results_as_dicts(self): return []

def load_report(path): return [[Fake()]]
"""
"""A fake `ncu_report` that reads one kernel out of any file."""


@pytest.fixture(autouse=True)
def _english_again() -> Iterator[None]:
    yield
    set_language("en")


def fake_python(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """Start a fake of the reader process: a shell script, which notes each start in the file that is returned."""
    starts = folder / "starts"
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho started >> '{starts}'\n{script}\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return starts


def fake_install(folder: Path, module: str) -> Path:
    """An Nsight Compute installation whose `ncu_report` is a fake."""
    python = folder / "extras" / "python"
    python.mkdir(parents=True)
    (python / "ncu_report.py").write_text(module, "utf-8")
    return folder


@pytest.mark.parametrize("name", [REPORT, "cu_reduce-float4.ncu-rep"])
def test_a_good_report_reads_as_in_this_process(reports: Path, name: str) -> None:
    assert read_report_apart(reports / name) == read_report(reports / name)


def test_the_version_of_ncu_reaches_the_reader(reports: Path) -> None:
    (warning,) = read_report_apart(reports / REPORT, ncu_version=(2999, 1, 0)).warnings
    assert "older than ncu 2999.1.0" in warning


def test_the_reader_of_the_installation_comes_first(reports: Path, tmp_path: Path) -> None:
    (kernel,) = read_report_apart(reports / REPORT, fake_install(tmp_path, GOOD)).kernels
    assert kernel.name == "fake_kernel"


@pytest.mark.parametrize(
    ("share", "words", "fix"),
    [
        (None, "cannot be read", "Check the path"),
        (0.0, "is empty", "Profile again"),
        (0.5, "damaged or incomplete", "Profile again"),
    ],
)
def test_a_file_that_cannot_be_used(
    reports: Path, tmp_path: Path, share: float | None, words: str, fix: str
) -> None:
    file = tmp_path / "x.ncu-rep"
    if share is not None:
        whole = (reports / REPORT).read_bytes()
        file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ReportError) as caught:
        read_report_apart(file)
    assert words in caught.value.message
    assert str(file) in caught.value.message
    assert fix in caught.value.fix


def test_the_reader_speaks_the_language_of_this_process(tmp_path: Path) -> None:
    set_language("zh")
    with pytest.raises(ReportError, match="无法读取"):
        read_report_apart(tmp_path / "gone.ncu-rep")


@pytest.mark.parametrize("end", ["kill -KILL $$", "kill -ABRT $$", "exit 1"])
def test_a_crash_says_what_to_do(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    starts = fake_python(monkeypatch, tmp_path, f"ulimit -c 0\n{end}")
    with pytest.raises(ReportError, match="crashed on") as caught:
        read_report_apart(reports / REPORT)
    assert REPORT in caught.value.message
    assert "pip install -U ncu-report" in caught.value.fix
    assert starts.read_text().count("started") == 1


def test_a_reader_that_does_not_end_is_ended(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "DEADLINE_SECONDS", 0.1)
    fake_python(monkeypatch, tmp_path, "exec tail -f /dev/null")
    with pytest.raises(ReportError, match="crashed on"):
        read_report_apart(reports / REPORT)


@pytest.mark.parametrize("module", [KILLED, RAISES], ids=["killed", "raises"])
def test_a_crash_of_the_installations_reader_falls_back_to_the_wheel(
    reports: Path, tmp_path: Path, module: str
) -> None:
    install = fake_install(tmp_path, module)
    assert read_report_apart(reports / REPORT, install) == read_report(reports / REPORT)


def test_both_readers_crash(reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = fake_python(monkeypatch, tmp_path, "kill -KILL $$")
    with pytest.raises(ReportError, match="crashed on"):
        read_report_apart(reports / REPORT, fake_install(tmp_path / "ncu", KILLED))
    assert starts.read_text().count("started") == 2
