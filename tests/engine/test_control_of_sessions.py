"""A session steered through `commands.jsonl`, as a second shell would: pause, step, steer, skip, stop, review."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tachyon_tui.core.session import SessionPaths, append_command
from tests.engine.lab import (
    BUILD,
    FASTER,
    PROFILE,
    RUN,
    SLOWER,
    STATUS,
    SUMMARY,
    Lab,
    turn,
)

Patch = pytest.MonkeyPatch


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def paused(event: Any) -> bool:
    return isinstance(event, e.ControlChanged) and event.running == "paused"


def test_a_hint_reaches_the_agent_at_the_next_tool_boundary(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(1, c.Steer(text="try one thread a row"))
    scenario = [
        [
            {"calls": [SUMMARY]},
            {"calls": [*FASTER, BUILD]},
            {"calls": [RUN, PROFILE], "expect": "try one thread a row"},
            {"text": "did as you said"},
        ]
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert "try one thread a row" in result.told
    assert [h.status for h in result.of(e.HintChanged)] == ["queued", "delivered", "answered"]
    assert result.states == ["SUCCESS"]


def test_a_hint_given_between_rounds_opens_the_next(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(2, c.Steer(text="mind the atomics"))
    scenario = [turn(SLOWER), [{"text": "ok", "expect": "mind the atomics"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=2)
    assert result.server is not None
    assert result.server.failures == []


def test_pause_holds_before_the_next_tool_and_the_clock_stands(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(1, c.Pause())
    lab.when(paused, c.Continue())
    scenario = [[{"calls": [STATUS]}, {"calls": [STATUS]}, {"text": "x"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    running = [event.running for event in result.of(e.ControlChanged)]
    assert running[:3] == ["pausing", "paused", "running"]
    at = next(i for i, event in enumerate(result.events) if paused(event))
    assert not isinstance(result.events[at + 1], e.ToolFinished)


def test_step_lets_one_tool_through(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(0, c.Pause())
    lab.when(paused, c.Step())
    calls: list[int] = []

    def second_pause(event: Any) -> bool:
        calls.append(paused(event))
        return sum(calls) == 2 and paused(event)

    lab.when(second_pause, c.Continue())
    scenario = [[{"calls": [STATUS, SUMMARY]}, {"text": "x"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    kinds = [
        event.tool if isinstance(event, e.ToolCalled) else event.running
        for event in result.events
        if isinstance(event, (e.ToolCalled, e.ControlChanged))
    ]
    first = kinds.index("paused")
    assert kinds[first:] == ["paused", "get_evolve_status", "paused", "running", "get_kernel_summary"]


def test_skip_ends_the_round_as_rolled_back(lab: Lab, monkeypatch: Patch) -> None:
    before = (lab.root / "reduce.cu").read_bytes()
    lab.at(1, c.Skip())
    scenario = [[{"calls": [*FASTER, BUILD]}, {"calls": [STATUS]}, {"text": "late"}], [{"text": "x"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=2)
    assert result.states[0] == "ROLLED_BACK"
    assert "skipped" in result.reasons[0]
    assert (lab.root / "reduce.cu").read_bytes() == before


def test_stop_now_restores_and_ends(lab: Lab, monkeypatch: Patch) -> None:
    before = (lab.root / "reduce.cu").read_bytes()
    lab.at(1, c.Stop())
    result = lab.run(monkeypatch, [[{"calls": [*FASTER, BUILD]}, {"calls": [STATUS]}]], max_iterations=5)
    assert result.states == ["FAILED"]
    assert (lab.root / "reduce.cu").read_bytes() == before
    assert "stopped by the user" in result.finished.reason
    assert result.of(e.Remeasured) == []


def test_stop_after_the_round_finishes_it(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(0, c.Stop(after_round=True))
    result = lab.run(monkeypatch, [turn(FASTER), turn(SLOWER)], max_iterations=5)
    assert result.states == ["SUCCESS"]
    assert result.code == 0
    assert result.of(e.Remeasured)


def test_review_waits_for_a_person_and_accept_commits(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(0, c.Review(on=True))
    lab.when(lambda ev: isinstance(ev, e.ReviewRequested), c.Accept(candidate="r0"))
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1)
    assert result.path[-3:] == ["PROFILING", "REVIEW", "SUCCESS"]
    assert lab.subjects()[0].startswith("tachyon:")


def test_review_may_turn_a_candidate_down(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(0, c.Review(on=True))
    lab.when(lambda ev: isinstance(ev, e.ReviewRequested), c.Revert(candidate="r0"))
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1)
    assert result.path[-2:] == ["REVIEW", "ROLLED_BACK"]
    assert lab.subjects() == ["start"]


def test_a_late_accept_cannot_hit_the_next_candidate(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(0, c.Review(on=True))
    lab.when(lambda ev: isinstance(ev, e.ReviewRequested), c.Accept(candidate="r7"), c.Revert(candidate="r0"))
    result = lab.run(monkeypatch, [turn(FASTER)], max_iterations=1)
    answers = [event for event in result.of(e.CommandAnswered) if event.kind in ("accept", "revert")]
    assert [answer.ok for answer in answers] == [False, True]
    assert result.states == ["ROLLED_BACK"]


def test_a_signal_ends_the_session_with_130_and_the_tree_restored(lab: Lab, monkeypatch: Patch) -> None:
    before = (lab.root / "reduce.cu").read_bytes()
    lab.at(1, lambda _paths: os.kill(os.getpid(), signal.SIGINT))
    result = lab.run(
        monkeypatch, [[{"calls": [*FASTER, BUILD]}, {"text": "x", "stall": 5}]], max_iterations=5
    )
    assert result.code == 130
    assert (lab.root / "reduce.cu").read_bytes() == before
    assert result.states == ["FAILED"]


def test_the_total_timeout_ends_the_round_and_the_session(lab: Lab, monkeypatch: Patch) -> None:
    before = (lab.root / "reduce.cu").read_bytes()
    scenario = [[{"calls": [*FASTER, BUILD]}, {"text": "x", "stall": 60}]]
    result = lab.run(monkeypatch, scenario, max_iterations=5, timeout=8)
    assert result.states == ["FAILED"]
    assert "timeout" in result.finished.reason
    assert (lab.root / "reduce.cu").read_bytes() == before


def test_a_spent_budget_ends_the_session(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(SLOWER), turn(FASTER)], max_iterations=5, llm__max_tokens=100)
    assert result.states == ["FAILED"]
    assert "budget" in result.finished.reason


def test_interactive_pauses_between_rounds(lab: Lab, monkeypatch: Patch) -> None:
    lab.when(lambda ev: isinstance(ev, e.ReviewRequested), c.Accept())
    lab.when(paused, c.Stop())
    result = lab.run(
        monkeypatch, [turn(FASTER), turn(SLOWER)], max_iterations=2, attended=True, interactive=True
    )
    assert result.states == ["SUCCESS"]


def test_a_broken_line_in_commands_is_answered_and_harmless(lab: Lab, monkeypatch: Patch) -> None:
    def garbage(paths: SessionPaths) -> None:
        with paths.commands.open("a") as file:
            file.write("{nonsense\n")
        append_command(paths, c.Steer(text="still here"))

    lab.at(1, garbage)
    result = lab.run(
        monkeypatch,
        [[{"calls": [STATUS]}, {"calls": [STATUS]}, {"text": "x"}]],
        max_iterations=1,
    )
    assert any("no command" in notice.message for notice in result.of(e.Notice))
    assert "still here" in result.told


def test_two_engines_on_one_work_tree_are_refused(lab: Lab, monkeypatch: Patch) -> None:
    codes: list[int] = []

    def second(_paths: SessionPaths) -> None:
        codes.append(lab.cli("evolve", "./app", scenario=[]).code)

    lab.at(0, second)
    lab.run(monkeypatch, [[{"text": "x"}]], max_iterations=1)
    assert codes == [1]


@pytest.mark.parametrize("path", ["reduce.cu", "other.txt"])
def test_someone_else_changes_a_file_during_a_round(lab: Lab, monkeypatch: Patch, path: str) -> None:
    (lab.root / "other.txt").write_text("mine", "utf-8")
    lab.git("add", "other.txt")
    lab.git("commit", "-qm", "other")

    def meddle(_paths: SessionPaths) -> None:
        with (lab.root / path).open("a") as file:
            file.write("// someone\n")

    lab.at(1, meddle)
    scenario = [[{"calls": [*FASTER, BUILD]}, {"calls": [RUN, PROFILE]}, {"text": "x"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert (lab.root / path).read_text("utf-8").endswith("// someone\n")
    if path == "other.txt":
        assert result.states == ["ROLLED_BACK"]
        assert "other.txt" in result.reasons[0]
    else:
        assert result.code == 1
        assert "reduce.cu" in result.finished.reason
        assert result.finished.fix


def test_a_moved_head_stops_the_session_without_a_commit(lab: Lab, monkeypatch: Patch) -> None:
    lab.at(1, lambda _paths: lab.git("commit", "-q", "--allow-empty", "-m", "someone"))
    scenario = [[{"calls": [*FASTER, BUILD]}, {"calls": [RUN, PROFILE]}, {"text": "x"}]]
    result = lab.run(monkeypatch, scenario, max_iterations=1)
    assert result.code == 1
    assert lab.subjects() == ["someone", "start"]


def test_with_a_person_the_loop_pauses_until_the_foreign_change_is_gone(lab: Lab, monkeypatch: Patch) -> None:
    ours: list[bytes] = []

    def meddle(_paths: SessionPaths) -> None:
        ours.append((lab.root / "reduce.cu").read_bytes())
        (lab.root / "reduce.cu").write_text("// someone", "utf-8")

    def undo(paths: SessionPaths) -> None:
        (lab.root / "reduce.cu").write_bytes(ours[0])
        append_command(paths, c.Continue())

    lab.at(1, meddle)
    lab.do_when(paused, undo)
    before = (lab.root / "reduce.cu").read_bytes()
    scenario = [[{"calls": [*FASTER, BUILD]}, {"calls": [RUN, PROFILE]}, {"text": "x"}], turn(SLOWER)]
    result = lab.run(monkeypatch, scenario, max_iterations=2, attended=True)
    assert result.states == ["FAILED", "ROLLED_BACK"]
    assert (lab.root / "reduce.cu").read_bytes() == before


def test_an_unreachable_model_pauses_a_session_with_a_person(lab: Lab, monkeypatch: Patch) -> None:
    lab.when(paused, c.Continue())
    scenario = [[{"status": 401}], turn(SLOWER)]
    result = lab.run(monkeypatch, scenario, max_iterations=1, attended=True)
    assert result.states == ["FAILED", "ROLLED_BACK"], "the failed round cost none"
