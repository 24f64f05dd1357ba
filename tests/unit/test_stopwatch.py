"""The stopwatch: a printed time, else the wall time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachyon_tui.core.launches import RunRecord
from tachyon_tui.profilers.base import Finished
from tachyon_tui.profilers.stopwatch import TAIL_BYTES, Stopwatch

WITH_UNIT = r"time: (?P<value>[-+.\w]+) ?(?P<unit>ms|us|µs|ns|s|min)?$"


def read(tmp_path: Path, pattern: str, output: str | bytes, seconds: float = 1.5) -> RunRecord:
    stdout = tmp_path / "stdout"
    stdout.write_bytes(output if isinstance(output, bytes) else output.encode())
    return Stopwatch(pattern).read(tmp_path, Finished(0, seconds, stdout, tmp_path / "log"))


@pytest.mark.parametrize(
    ("pattern", "output", "ms"),
    [
        (r"time: ([0-9.]+)", "time: 12.5\n", 12.5),
        (r"time: ([0-9.]+)", "time: 12.5\ntime: 13.5\nend\n", 13.5),
        (r"^t=(\S+)$", "xt=1\nt=2e-1\n", 0.2),
        (r"(?P<unit>s|us) (?P<value>\d+)", "us 250", 0.25),
        (r"(?P<unit>s|us) (\d+)", "s 3", 3000.0),
        (WITH_UNIT, "time: 2 s", 2000.0),
        (WITH_UNIT, "time: 2 ms", 2.0),
        (WITH_UNIT, "time: 2", 2.0),
        (WITH_UNIT, "time: 2 us", 0.002),
        (WITH_UNIT, "time: 2 µs", 0.002),
        (WITH_UNIT, "time: 500000 ns", 0.5),
        ("", "time: 2 us", 1500.0),
    ],
)
def test_the_last_match_is_the_time(tmp_path: Path, pattern: str, output: str, ms: float) -> None:
    record = read(tmp_path, pattern, output)
    assert record.instrument == "stopwatch"
    assert record.value_ms == pytest.approx(ms)
    assert record.problem == ""
    assert record.launches == ()


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "1.2.3", "0.0", "1e400"])
def test_a_time_that_is_none_is_a_problem(tmp_path: Path, value: str) -> None:
    record = read(tmp_path, WITH_UNIT, f"time: 5\ntime: {value}\n")
    assert record.value_ms is None
    assert value in record.problem


@pytest.mark.parametrize(
    ("pattern", "output", "word"),
    [
        (r"time: ([0-9.]+)", "nothing here", "not found"),
        (r"time: ([0-9.]+)?", "time: ", "no number"),
        (WITH_UNIT, "time: 5 min", "min"),
        (r"time: ([0-9.]+)", b"\xff\xfe\x00", "not found"),
    ],
)
def test_no_time_is_a_problem(tmp_path: Path, pattern: str, output: str, word: str) -> None:
    record = read(tmp_path, pattern, output)
    assert record.value_ms is None
    assert word in record.problem


def test_missing_output_is_a_problem(tmp_path: Path) -> None:
    finished = Finished(0, 1.0, tmp_path / "absent", tmp_path / "log")
    assert "could not be read" in Stopwatch("(x)").read(tmp_path, finished).problem


def test_wall_time_of_zero_is_a_problem(tmp_path: Path) -> None:
    assert read(tmp_path, "", "", seconds=0.0).problem


def test_bytes_that_are_no_text_do_not_hide_the_time(tmp_path: Path) -> None:
    assert read(tmp_path, r"t=(\d+)", b"\xff\x80t=7\n").value_ms == 7.0


def test_only_the_end_of_a_huge_output_is_searched(tmp_path: Path) -> None:
    record = read(tmp_path, r"t=(\d+)", b"t=1\n" + b" " * TAIL_BYTES + b"t=2\n")
    assert record.value_ms == 2.0


@pytest.mark.parametrize("pattern", ["(unclosed", "[a", "time: [0-9]+", "time (?P<unit>ms)"])
def test_a_bad_pattern_is_refused_with_help(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\[stopwatch\] pattern") as caught:
        Stopwatch(pattern)
    assert pattern in str(caught.value)


def test_the_command_is_left_alone(tmp_path: Path) -> None:
    command = Stopwatch("").prepare(["./app", "--size", "4"], tmp_path)
    assert command.argv == ("./app", "--size", "4")
    assert not command.env
