"""What a person does to the project while a session runs is neither lost nor credited to the agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tachyon_tui.core.session import SessionPaths, append_command
from tests.engine.lab import (
    BODY,
    BUILD,
    FASTER,
    KEY,
    PROFILE,
    RUN,
    SLOWER,
    STATUS,
    Lab,
    body,
    edit,
    slightly,
    turn,
)

Patch = pytest.MonkeyPatch
NOTHING = [{"text": "no idea"}]
SAME_SPEED = [body(BODY + "    volatile int unused = 3;\n    (void)unused;\n")]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def rebuild_rule(lab: Lab, before: str) -> None:
    """Put a shell command before the compiler in the Makefile's rule."""
    makefile = lab.root / "Makefile"
    makefile.write_text(makefile.read_text("utf-8").replace("\t$(CXX)", f"\t{before}; $(CXX)"), "utf-8")
    lab.git("commit", "-qam", "another build")


def cheaper_atomics(lab: Lab) -> None:
    header = lab.root / "fake_gpu.h"
    header.write_text(header.read_text("utf-8").replace("cost += 40;", "cost += 30;"), "utf-8")


def paused(event: Any) -> bool:
    return isinstance(event, e.ControlChanged) and event.running == "paused"


def test_notes_saved_while_the_candidate_builds_stay(lab: Lab, monkeypatch: Patch) -> None:
    notes = lab.root / "notes.txt"
    # The build itself plays the person: what it leaves in the root is no product of a compiler.
    rebuild_rule(lab, "grep -q 'cost += 7' reduce.cu && echo mine > notes.txt || true")
    mine = [body(BODY + "    fake_gpu::cost += 7;\n")]
    result = lab.run(monkeypatch, [turn(mine), turn(SLOWER)], max_iterations=2)
    assert result.states == ["ROLLED_BACK", "ROLLED_BACK"]
    assert notes.read_text("utf-8") == "mine\n"


def test_a_changed_header_is_not_credited_to_the_agent(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(1, lambda _paths: cheaper_atomics(lab))
    scenario = [[{"calls": [*SLOWER, BUILD]}, {"calls": [RUN, PROFILE]}, {"text": "x"}], turn(SAME_SPEED)]
    result = lab.run(monkeypatch, scenario, max_iterations=2)
    assert result.states == ["ROLLED_BACK", "ROLLED_BACK"], result.reasons
    assert "fake_gpu.h" in result.reasons[0]
    assert "not faster" in result.reasons[1]
    assert lab.subjects() == ["start"]
    assert any("measured anew" in notice.message for notice in result.of(e.Notice))


def test_a_header_changed_between_rounds_is_seen(lab: Lab, monkeypatch: Patch) -> None:
    def act(paths: SessionPaths) -> None:
        cheaper_atomics(lab)
        append_command(paths, c.Review(on=False))
        append_command(paths, c.Continue())

    lab.do_when(paused, act)
    result = lab.run(
        monkeypatch, [NOTHING, turn(SAME_SPEED)], max_iterations=2, attended=True, interactive=True
    )
    assert result.states == ["FAILED", "ROLLED_BACK"], result.reasons
    assert lab.subjects() == ["start"]


def test_a_swapped_script_runs_its_own_code(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
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
    same_size = [edit("work[0] += 2", "work[0] += 1", "fast.py")]
    result = lab.run(monkeypatch, [turn(same_size)], max_iterations=1)
    times = {(run.who, run.ms) for run in result.of(e.RunFinished)}
    assert times == {("baseline", 2000.0), ("candidate", 1000.0), ("best", 1000.0)}


def test_a_failed_build_may_leave_objects_behind(tmp_path: Path, monkeypatch: Patch) -> None:
    lab = Lab(tmp_path, "cpp_sum")
    (lab.root / "Makefile").write_text(
        "OBJ=$(addsuffix .o,$(basename $(wildcard *.cpp *.cu)))\n"
        "app: $(OBJ)\n\tg++ -o $@ $^\n"
        "%.o: %.cpp sum.h\n\tg++ -O1 -c -o $@ $<\n%.o: %.cu\n\tg++ -x c++ -c -o $@ $<\n"
    )
    lab.git("commit", "-qam", "wildcards")
    lab.config = [
        'build_cmd = "make -k"',
        'profiler = "stopwatch"',
        'allowed_edit_paths = ["."]',
        "[stopwatch]",
        r"pattern = 'rows=([0-9.]+)'",
    ]
    helper = {"path": "helper.cu", "old_text": "", "new_text": "int helper() { return 1; }\n"}
    new = {"name": "edit_source_file", "arguments": helper}
    first = "for (int r = 0; r < rows; ++r) out[r] = 0.0f;"
    mended = edit(first + " BROKEN;", first, "sum.cpp")
    scenario = [
        [
            {"calls": [new, edit(first, first + " BROKEN;", "sum.cpp"), BUILD]},
            {"calls": [mended, edit("return 1;", "return 2;", "helper.cu"), BUILD]},
            {"calls": [RUN, PROFILE]},
            {"text": "x"},
        ]
    ]  # fmt: skip
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert result.states == ["ROLLED_BACK"], result.reasons
    assert not (lab.root / "helper.cu").exists()


def test_a_source_that_is_no_utf8_ends_nothing(lab: Lab, monkeypatch: Patch) -> None:
    file = lab.root / "reduce.cu"
    file.write_bytes("// 归约\n".encode("gbk") + file.read_bytes())
    lab.git("commit", "-qam", "gbk")
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1)
    assert result.states == ["FAILED"]
    assert "reduce.cu" in result.told


def test_a_build_without_a_program_is_the_candidates_fault(lab: Lab, monkeypatch: Patch) -> None:
    rebuild_rule(lab, "! grep -q 'cost -= 1' reduce.cu || { rm -f app; echo > build.log; exit 0; }")
    result = lab.run(monkeypatch, [turn(slightly(1)), turn(FASTER)], max_iterations=2)
    assert result.states == ["ROLLED_BACK", "SUCCESS"], result.reasons


def test_no_key_of_the_provider_reaches_build_or_program(lab: Lab, monkeypatch: Patch) -> None:
    rebuild_rule(lab, "env")
    result = lab.run(monkeypatch, [turn(SLOWER)], max_iterations=1)
    assert result.states == ["ROLLED_BACK"]
    assert any("HOME=" in log.read_text("utf-8") for log in result.paths.logs.iterdir())
    held = [
        file
        for file in result.paths.folder.rglob("*")
        if file.is_file() and KEY.encode() in file.read_bytes()
    ]
    assert held == []


def test_a_revert_asked_for_in_the_last_round_is_done(lab: Lab, monkeypatch: Patch) -> None:
    before = (lab.root / "reduce.cu").read_bytes()
    lab.at(3, c.Revert(round=0))
    result = lab.run(monkeypatch, [turn(FASTER), NOTHING], max_iterations=2)
    assert [event.rounds for event in result.of(e.Reverted)] == [(0,)]
    assert (lab.root / "reduce.cu").read_bytes() == before
    assert result.finished.succeeded == 0
    assert result.finished.gain_percent == pytest.approx(0, abs=0.5)


def test_a_revert_under_a_moved_head_changes_nothing(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(3, c.Revert(round=0), lambda _paths: lab.git("commit", "-q", "--allow-empty", "-m", "mine"))
    result = lab.run(monkeypatch, [turn(FASTER), NOTHING, NOTHING], max_iterations=3)
    assert result.code == 1
    assert result.of(e.Reverted) == []
    assert [line for line in lab.status().splitlines() if ".tachyon" not in line] == []


def test_a_pause_does_not_count_against_the_verdict(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(1, c.Pause())
    waited: list[float] = []

    def go_on(paths: SessionPaths) -> None:
        waited.append(1.0)
        append_command(paths, c.Continue())

    lab.do_when(paused, go_on)
    result = lab.run(monkeypatch, [turn(slightly(2))], max_iterations=1, timeout=120)
    assert waited
    assert result.states == ["SUCCESS"], result.reasons


def test_a_rejected_candidate_is_not_put_over_a_commit_of_the_users(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(1, lambda _paths: lab.git("commit", "-qam", "mine, with the candidate in it"))
    scenario = [[{"calls": [*SLOWER, BUILD]}, {"calls": [STATUS]}, {"text": "x"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert result.code == 1
    assert lab.status() == "?? .tachyon/"
    assert "0.0f" in (lab.root / "reduce.cu").read_text("utf-8")
