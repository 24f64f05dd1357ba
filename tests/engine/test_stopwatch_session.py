"""A real session without any GPU: g++, make and the stopwatch on a C++ program, through the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tachyon_tui.core import events as e
from tests.engine.lab import BUILD, PROFILE, RUN, Lab, edit

SLOW = """    for (int r = 0; r < rows; ++r) out[r] = 0.0f;
    for (int c = 0; c < cols; ++c)
        for (int r = 0; r < rows; ++r) out[r] += in[static_cast<long>(r) * cols + c];
"""
FAST = """    for (int r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int c = 0; c < cols; ++c) sum += in[static_cast<long>(r) * cols + c];
        out[r] = sum;
    }
"""
WRONG = SLOW.replace("c < cols", "c < cols / 2")


def scenario() -> list[object]:
    return [
        [
            {"text": "Half the columns are enough.", "calls": [edit(SLOW, WRONG, "sum.cpp"), BUILD]},
            {"calls": [RUN]},
            {"text": "They are not."},
        ],
        [
            {"text": "Row by row, as the memory lies.", "calls": [edit(SLOW, FAST, "sum.cpp"), BUILD]},
            {"calls": [RUN, PROFILE]},
            {"text": "Rows are walked in order now."},
        ],
        [{"text": "Nothing else comes to mind."}],
    ]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path, "cpp_sum")
    lab.config = [
        'build_cmd = "make"',
        'profiler = "stopwatch"',
        'allowed_edit_paths = ["sum.cpp"]',
        "[stopwatch]",
        r"pattern = 'time_ms=([0-9.]+)'",
    ]
    return lab


def test_plain_output_shows_the_rounds_and_the_summary(lab: Lab) -> None:
    result = lab.cli("evolve", "./app", "--max-iterations", "3", "--export", "out.md", scenario=scenario())
    assert result.code == 0, result.stderr
    assert result.states == ["ROLLED_BACK", "SUCCESS", "FAILED"]
    lines = result.stdout.splitlines()
    assert any(line.startswith("#0 ↩ ROLLED_BACK") for line in lines)
    assert any(line.startswith("#1 ✓ SUCCESS  Accepted: time -") for line in lines)
    assert any(line.startswith("#2 ✗ FAILED") for line in lines)
    assert any("Optimization: Rows are walked in order now." in line for line in lines)
    assert any(line.startswith("────────── Optimisation finished (+") for line in lines)
    assert lines[-1].startswith("  Best: iter 1  |  GPU: ")
    assert lines[-1].endswith("Success: 1, Failed: 2")
    assert lab.subjects()[0].startswith("tachyon:")
    exported = (lab.root / "out.md").read_text("utf-8")
    assert "Rows are walked in order now." in exported
    assert "-    for (int c = 0; c < cols; ++c)" in exported


def test_quiet_prints_the_summary_alone_and_json_one_event_a_line(lab: Lab) -> None:
    result = lab.cli(
        "evolve", "-q", "./app", "--max-iterations", "2", "--lang", "zh", scenario=scenario()[:2]
    )
    assert result.code == 0, result.stderr
    assert "优化完成" in result.stdout
    assert len(result.stdout.strip().splitlines()) == 2
    result = lab.cli("evolve", "--json", "./app", "--max-iterations", "1", scenario=[[{"text": "no idea"}]])
    assert result.code == 3
    kinds = [line.split('"type":"')[1].split('"')[0] for line in result.stdout.splitlines()]
    assert kinds[0] == "session_started"
    assert kinds[-1] == "session_finished"


def test_it_says_that_a_stopwatch_can_be_fooled(lab: Lab) -> None:
    result = lab.cli("evolve", "./app", "--max-iterations", "1", scenario=[[{"text": "no idea"}]])
    checks = [check for check in result.of(e.PreflightCheck) if check.name == "timer"]
    assert checks[0].status == "warning"
    assert "fool" in result.stderr + result.stdout


def test_a_script_needs_no_build_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, "py_sum")
    lab.config = [
        f'run_cmd = "{sys.executable} app.py"',
        'profiler = "stopwatch"',
        'allowed_edit_paths = ["fast.py"]',
        "[stopwatch]",
        "pattern = 'cost=([0-9.]+)'",
        "[verify]",
        "ignore = ['cost=[0-9.]+']",
    ]
    close = [edit("work[0] += 2", "work[0] += 1.9", "fast.py"), BUILD]
    scenario = [
        [
            {"calls": [edit("work[0] += 2", "work[0] += 3", "fast.py"), BUILD]},
            {"calls": [RUN, PROFILE]},
            {"text": "no"},
        ],
        [{"calls": close}, {"calls": [RUN, PROFILE]}, {"text": "a little"}],
    ]
    before = (lab.root / "fast.py").read_text("utf-8")
    result = lab.run(monkeypatch, scenario, max_iterations=2)
    assert result.states == ["ROLLED_BACK", "SUCCESS"], result.reasons
    assert (lab.root / "fast.py").read_text("utf-8") == before.replace("+= 2", "+= 1.9")
    assert lab.status() == "?? .tachyon/"
    assert result.of(e.Remeasured)[0].confirmed
