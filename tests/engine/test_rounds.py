"""Whole rounds on the fake GPU: every way to end one, and what is left in the tree, in git and the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tests.engine.lab import (
    BODY,
    BROKEN,
    BUILD,
    COMPARE,
    CRASH,
    FASTER,
    NO_EFFECT,
    PROFILE,
    ROW_BODY,
    RUN,
    SLOWER,
    SLOWER_ROWS,
    STATUS,
    SUMMARY,
    WRONG,
    Lab,
    body,
    edit,
    slightly,
    turn,
)

Patch = pytest.MonkeyPatch


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def source(lab: Lab) -> str:
    return (lab.root / "reduce.cu").read_text("utf-8")


def test_a_faster_version_is_committed(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(FASTER, "one thread a row")], max_iterations=1)
    assert result.states == ["SUCCESS"]
    assert result.path == ["HYPOTHESIS", "EDITING", "COMPILING", "RUNNING", "PROFILING", "SUCCESS"]
    assert result.code == 0
    assert lab.subjects()[0].startswith("tachyon: reduce_kernel 0.4")
    assert lab.subjects()[1:] == ["start"]
    assert lab.git("show", "--name-only", "--format=", "HEAD") == "reduce.cu"
    assert ROW_BODY in source(lab)
    assert lab.status() == "?? .tachyon/"
    final = result.of(e.Remeasured)[0]
    assert final.confirmed
    assert final.gain_percent > 90
    assert result.finished.succeeded == 1


def test_the_commit_message_carries_numbers_interval_and_checks(lab: Lab, monkeypatch: Patch) -> None:
    lab.run(monkeypatch, [turn(FASTER, "one thread a row")], max_iterations=1)
    message = lab.git("log", "-1", "--format=%B")
    assert "Saving between" in message
    assert "mismatches=" in message
    assert "In the agent's words:\none thread a row" in message


@pytest.mark.parametrize(
    ("edits", "reason", "ends"),
    [
        (SLOWER, "clearly slower", ["PROFILING", "ROLLED_BACK"]),
        (NO_EFFECT, "no effect", ["RUNNING", "ROLLED_BACK"]),
        (WRONG, "exit code 1", ["RUNNING", "ROLLED_BACK"]),
        (CRASH, "SIGABRT", ["RUNNING", "ROLLED_BACK"]),
    ],
)
def test_what_is_not_faster_is_rolled_back(
    lab: Lab, monkeypatch: Patch, edits: list[Any], reason: str, ends: list[str]
) -> None:
    before, binary = source(lab), None
    result = lab.run(monkeypatch, [turn(edits)], max_iterations=1)
    binary = (lab.root / "app").read_bytes()
    assert result.path[-2:] == ends
    assert reason in result.reasons[0]
    assert source(lab) == before
    assert lab.subjects() == ["start"]
    assert result.code == 3
    assert (result.paths.patches / "round-000.patch").read_text("utf-8").startswith("diff --git a/reduce.cu")
    lab.git("apply", "--check", str(result.paths.patches / "round-000.patch"))
    (lab.root / "app").unlink()
    import subprocess

    subprocess.run(["make", "-s"], cwd=lab.root, check=True, capture_output=True)
    assert (lab.root / "app").read_bytes() == binary


def test_a_failed_build_may_be_mended(lab: Lab, monkeypatch: Patch) -> None:
    mend = body("atomicAdd(&out[row], in[i]) ;\n", "atomicAdd(&out[row], in[i])\n")
    scenario = [
        [
            {"calls": [*BROKEN, BUILD]},
            {"expect": "error:", "calls": [mend, *FASTER_AFTER_MEND, BUILD]},
            {"calls": [RUN, PROFILE]},
            {"text": "done"},
        ]
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert result.states == ["SUCCESS"], result.reasons
    assert result.path[1:5] == ["EDITING", "COMPILING", "EDITING", "COMPILING"]
    assert [b.ok for b in result.of(e.BuildFinished) if b.round == 0] == [False, True]


FASTER_AFTER_MEND = [
    body(ROW_BODY, BODY.replace("in[i]);", "in[i]) ;")),
    FASTER[1],
]


def test_no_build_passed_is_failed(lab: Lab, monkeypatch: Patch) -> None:
    before = source(lab)
    result = lab.run(monkeypatch, [[{"calls": [*BROKEN, BUILD]}, {"text": "I give up"}]], max_iterations=1)
    assert result.path == ["HYPOTHESIS", "EDITING", "COMPILING", "EDITING", "FAILED"]
    assert source(lab) == before


def test_the_build_limit_ends_the_round(lab: Lab, monkeypatch: Patch) -> None:
    scenario = [
        [
            {"calls": [*BROKEN, BUILD]},
            {"calls": [edit("in[i])", "in[i] )"), BUILD]},
            {"calls": [edit("in[i] )", "in[i])"), BUILD]},
        ]
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=1, llm__max_builds=2)
    assert result.states == ["FAILED"]
    assert "2 builds" in result.reasons[0]


def test_the_turn_limit_ends_the_round(lab: Lab, monkeypatch: Patch) -> None:
    scenario = [[{"calls": [STATUS]} for _ in range(5)]]
    result = lab.run(monkeypatch, scenario, max_iterations=1, llm__max_tool_calls=3)
    assert result.states == ["FAILED"]
    assert len(result.of(e.ToolCalled)) == 3


def test_a_turn_without_an_edit_is_failed(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [[{"text": "It is perfect already."}]], max_iterations=1)
    assert result.path == ["HYPOTHESIS", "FAILED"]
    assert "without an edit" in result.reasons[0]


def test_unbuilt_edits_are_built_and_measured_by_the_engine(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(
        monkeypatch, [[{"calls": FASTER}, {"text": "Surely accepted, 30x faster!"}]], max_iterations=1
    )
    assert result.states == ["SUCCESS"]
    assert result.path == ["HYPOTHESIS", "EDITING", "COMPILING", "RUNNING", "PROFILING", "SUCCESS"]


def test_the_agents_prose_is_no_record(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(SLOWER, "Accepted! 2.3x faster, committed.")], max_iterations=1)
    assert result.states == ["ROLLED_BACK"]
    assert lab.subjects() == ["start"]


def test_a_gain_of_a_few_percent_is_seen(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(slightly(2))], max_iterations=1)
    assert result.states == ["SUCCESS"]
    verdict = result.of(e.Verdict)[0]
    assert verdict.kind == "gain"
    assert 2 < verdict.gain_percent < 5
    assert verdict.low_percent > 1


def test_a_gain_below_the_margin_is_not_accepted(lab: Lab, monkeypatch: Patch) -> None:
    shave = [edit("const dim3 block(1, 1, 1);", "const dim3 block(1, 1, 1);\n    fake_gpu::now += 7;")]
    result = lab.run(monkeypatch, [turn(shave)], max_iterations=1)
    assert result.states == ["ROLLED_BACK"]
    assert "not faster" in result.reasons[0]


def test_the_notebook_tells_the_next_round_what_happened(lab: Lab, monkeypatch: Patch) -> None:
    scenario = [
        turn(SLOWER, "two atomics"),
        turn(FASTER, expect=["#0 ROLLED_BACK", "clearly slower", "two atomics", "reduce.cu (+1 -0)"]),
        [{"text": "enough", "expect": ["#1 SUCCESS", "best version so far"]}],
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=3)
    assert result.server is not None
    assert result.server.failures == []
    assert result.states == ["ROLLED_BACK", "SUCCESS", "FAILED"]


def test_the_agent_is_shown_the_incumbent_after_a_rollback(lab: Lab, monkeypatch: Patch) -> None:
    scenario = [
        turn(SLOWER),
        [{"calls": [SUMMARY]}, {"text": "x", "expect": "atomicAdd(&out[row], in[i]);", "expect_not": "0.0f"}],
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=2)
    assert result.server is not None
    assert result.server.failures == []


def test_calls_out_of_turn_are_answered_with_what_is_allowed(lab: Lab, monkeypatch: Patch) -> None:
    early = [PROFILE, COMPARE, RUN, BUILD]
    late = [edit("sum", "total"), BUILD]
    scenario = [
        [
            {"calls": early},
            {"calls": [*FASTER, BUILD], "expect": ["the state is HYPOTHESIS", "edit_source_file"]},
            {"calls": late},
            {"calls": [RUN], "expect": ["the state is RUNNING"]},
            {"text": "done"},
        ]
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert result.server is not None
    assert result.server.failures == []
    calls = result.of(e.ToolFinished)
    assert [call.ok for call in calls[:4]] == [False] * 4
    assert result.states == ["SUCCESS"]


def test_bad_arguments_are_answered(lab: Lab, monkeypatch: Patch) -> None:
    scenario = [
        [
            {"calls": [{"name": "edit_source_file", "arguments": "{not json"}]},
            {
                "calls": [{"name": "edit_source_file", "arguments": {"path": "reduce.cu"}}],
                "expect": "cannot be used",
            },
            {
                "calls": [{"name": "compile_kernel", "arguments": {"command": "rm -rf /"}}],
                "expect": "old_text",
            },
            {"calls": [{"name": "run_shell", "arguments": {}}]},
            {"text": "done", "expect": "no tool"},
        ]
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert result.server is not None
    assert result.server.failures == []


@pytest.mark.parametrize(
    "path",
    ["main.cu", "Makefile", "../fake_gpu/reduce.cu", "REDUCE.CU", "/etc/passwd", ".git/config", "fake_gpu.h"],
)
def test_only_the_editable_set_is_edited(lab: Lab, monkeypatch: Patch, path: str) -> None:
    scenario = [[{"calls": [edit("main", "niam", path)]}, {"text": "hm"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert [call.ok for call in result.of(e.ToolFinished)] == [False]
    assert lab.status() == "?? .tachyon/"


def test_rounds_without_a_person_reject_host_edits(tmp_path: Path, monkeypatch: Patch) -> None:
    lab = Lab(tmp_path)
    text = source(lab) + "\nint main_helper() { return 0; }\n"
    (lab.root / "reduce.cu").write_text(text, "utf-8")
    lab.git("commit", "-qam", "x")
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1)
    assert result.states == ["SUCCESS"]


def test_auto_commit_off_leaves_the_change_uncommitted(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1, git__auto_commit=False)
    assert result.states == ["SUCCESS"]
    assert lab.subjects() == ["start"]
    assert "M reduce.cu" in lab.status()
    again = lab.run(monkeypatch, [turn([edit("sum", "total")])], max_iterations=1, git__auto_commit=False)
    assert again.code != 2, "what we left uncommitted is not taken for someone's change"


def test_auto_rollback_off_leaves_the_candidate_and_stops(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(SLOWER), turn(FASTER)], max_iterations=5, git__auto_rollback=False)
    assert result.states == ["ROLLED_BACK"]
    assert "0.0f" in source(lab)
    assert "left in place" in result.finished.reason


def test_a_branch_takes_the_commits(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1, git__branch="fast")
    assert result.states == ["SUCCESS"]
    assert lab.subjects() == ["start"]
    assert lab.git("log", "-1", "--format=%s", "fast").startswith("tachyon:")


def test_other_work_of_the_user_is_untouched(lab: Lab, monkeypatch: Patch) -> None:
    (lab.root / "notes.txt").write_text("mine", "utf-8")
    (lab.root / "main.cu").write_text((lab.root / "main.cu").read_text("utf-8") + "// mine\n", "utf-8")
    (lab.root / "staged.txt").write_text("staged", "utf-8")
    lab.git("add", "staged.txt")
    before = lab.status().splitlines()
    result = lab.run(monkeypatch, [turn(FASTER), turn(SLOWER_ROWS)], max_iterations=2)
    assert result.states == ["SUCCESS", "ROLLED_BACK"]
    assert [line for line in lab.status().splitlines() if ".tachyon" not in line] == before
    assert lab.git("show", "--name-only", "--format=", "HEAD") == "reduce.cu"


def test_session_json_and_journal_hold_no_key(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1)
    for file in result.paths.folder.rglob("*"):
        if file.is_file():
            assert b"sk-test-0123456789abcdef" not in file.read_bytes(), file
    assert json.loads(result.paths.settings.read_text("utf-8"))["settings"]["build_cmd"] == "make"


def test_reverting_an_accepted_round_returns_to_the_state_before(lab: Lab, monkeypatch: Patch) -> None:
    before = source(lab)

    def between_rounds(event: object) -> bool:
        return isinstance(event, e.ControlChanged) and event.running == "paused"

    lab.when(between_rounds, c.Revert(round=0), c.Continue())
    lab.when(lambda event: isinstance(event, e.ReviewRequested), c.Accept())
    result = lab.run(
        monkeypatch, [turn(FASTER), [{"text": "nothing"}]], max_iterations=2, attended=True, interactive=True
    )
    assert [event.rounds for event in result.of(e.Reverted)] == [(0,)]
    assert source(lab) == before
    assert lab.subjects()[0] == "tachyon: take back #0"
    assert result.finished.succeeded == 0
    assert result.view.best_round is None
