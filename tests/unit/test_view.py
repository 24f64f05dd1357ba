"""The fold: what every front end shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support import (
    BASE_MS,
    calibrated,
    finished,
    guide_session,
    measured,
    remeasured,
    round_finished,
    started,
)

from tachyon_tui.core import events as e
from tachyon_tui.core import view as v
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.states import IterationState as S
from tachyon_tui.core.view import SessionView, fold, fold_all


def folded(*events: Any) -> SessionView:
    return fold_all(
        event.model_copy(update={"seq": n, "time": 100.0 + n}) for n, event in enumerate(events, 1)
    )


def test_the_guides_session() -> None:
    view = folded(*guide_session())
    assert view.started is not None
    assert (view.base_ms, view.best_ms, view.best_round) == (BASE_MS, 2.18, 6)
    assert [r.number for r in view.rounds] == list(range(7))
    assert [r.number for r in view.accepted] == [1, 5, 6]
    assert view.remeasured is not None
    assert view.finished is not None
    assert view.seq == len(guide_session())
    assert view.now == 100.0 + view.seq


def test_fold_changes_nothing_in_place() -> None:
    before = folded(started(), e.RoundStarted(round=0))
    copy = dataclasses.replace(before)
    fold(before, round_finished(0, S.FAILED, reason="x"))
    assert before == copy


def test_an_unknown_event_only_moves_the_number() -> None:
    class Unknown:
        seq, time = 9, 5.0

    before = folded(started())
    after = fold(before, Unknown())
    assert (after.seq, after.now) == (9, 5.0)
    assert dataclasses.replace(after, seq=before.seq, now=before.now) == before


def test_a_round_follows_its_states() -> None:
    view = folded(
        e.RoundStarted(round=0),
        e.StateChanged(round=0, before=S.PENDING, after=S.HYPOTHESIS),
        e.StateChanged(round=0, before=S.HYPOTHESIS, after=S.EDITING),
        e.Edited(round=0, path="a.cu", added=1, removed=0, diff="+x", touches_host="main"),
    )
    assert view.round is not None
    assert view.round.state is S.EDITING
    assert (view.round.started, view.round.state_since) == (101.0, 103.0)
    assert (view.round.diff, view.round.touches_host) == ("+x", "main")
    assert view.round_view(0) == view.round
    assert view.round_view(1) is None


def test_verdict_and_time_of_the_candidate_show_before_the_round_ends() -> None:
    run: dict[str, Any] = {"cold": False, "ok": True, "exit_code": 0, "seconds": 1.0}
    view = folded(
        e.RoundStarted(round=0),
        e.RunFinished(round=0, who="candidate", ms=3.0, **run),
        e.RunFinished(round=0, who="best", ms=9.0, **run),
        e.Verdict(round=0, accepted=True, kind="gain", reason="faster"),
    )
    assert view.round is not None
    assert view.round.ms == 3.0
    assert view.round.verdict is not None
    assert view.round.reason == "faster"


def test_taking_rounds_back() -> None:
    view = folded(
        calibrated(),
        e.RoundStarted(round=0),
        measured(0, S.SUCCESS, 5.0, -50, 50),
        e.RoundStarted(round=1),
        measured(1, S.SUCCESS, 4.0, -20, 60),
        e.Reverted(rounds=(1,), best_ms=5.0),
    )
    assert (view.best_ms, view.best_round) == (5.0, 0)
    assert [r.reverted for r in view.rounds] == [False, True]
    assert [r.number for r in view.accepted] == [0]
    assert fold(view, e.Reverted(rounds=(0, 1), best_ms=BASE_MS)).best_round is None


@pytest.mark.parametrize(
    "event",
    [
        e.StateChanged(round=0, before=S.REVIEW, after=S.SUCCESS),
        round_finished(0, S.ROLLED_BACK),
        finished(),
    ],
)
def test_a_review_waits_until_it_is_decided(event: Any) -> None:
    events = [
        e.RoundStarted(round=0),
        e.ReviewRequested(round=0, candidate="0-1", why="touches the host program"),
        e.StateChanged(round=0, before=S.PROFILING, after=S.REVIEW),
    ]
    waiting = folded(*events).waiting
    assert waiting is not None
    assert waiting.candidate == "0-1"
    assert folded(*events, event).waiting is None


def test_a_tool_call_is_one_item_that_changes() -> None:
    call = e.ToolCalled(round=0, call="c1", tool="compile_kernel", arguments="{}")
    done = e.ToolFinished(round=0, call="c1", tool="compile_kernel", ok=False, text="error", seconds=2.0)
    [item] = folded(call).stream
    assert (item.kind, item.state, item.tool) == ("tool", "running", "compile_kernel")
    [item] = folded(call, done).stream
    assert (item.state, item.text, item.seconds) == ("failed", "error", 2.0)


def test_prose_is_joined_within_a_round() -> None:
    view = folded(*(e.AgentText(round=n // 2, text=str(n)) for n in range(4)))
    assert [(item.round, item.text) for item in view.stream] == [(0, "01"), (1, "23")]


def test_the_stream_is_bounded() -> None:
    calls = [e.ToolCalled(round=0, call=str(n), tool="t", arguments="{}") for n in range(v.STREAM_LIMIT + 50)]
    view = folded(*calls)
    assert len(view.stream) == v.STREAM_LIMIT
    assert view.stream_dropped == 50
    assert view.stream[0].id == "50"
    late = e.ToolFinished(round=0, call="0", tool="t", ok=True, text="x")
    assert fold(view, late).stream == view.stream


def test_one_item_of_prose_is_bounded() -> None:
    view = folded(*(e.AgentText(round=0, text="x" * 1000) for _ in range(50)))
    assert max(len(item.text) for item in view.stream) <= v.TEXT_LIMIT + 1000
    assert sum(len(item.text) for item in view.stream) == 50_000


def test_hints() -> None:
    def hint(name: str, status: Any) -> e.HintChanged:
        return e.HintChanged(hint=name, text=name, status=status, round=0)

    view = folded(hint("a", "queued"), hint("b", "queued"), hint("a", "delivered"))
    assert {h.hint: h.status for h in view.hints} == {"a": "delivered", "b": "queued"}
    assert [(item.id, item.state) for item in view.stream] == [("a", "delivered"), ("b", "queued")]


def test_notices_are_bounded_and_without_debug() -> None:
    notices = [e.Notice(level="info", message=str(n)) for n in range(v.NOTICE_LIMIT + 5)]
    view = folded(*notices, e.Notice(level="debug", message="x"))
    assert [n.message for n in view.notices] == [str(n) for n in range(5, v.NOTICE_LIMIT + 5)]


def test_diagnoses_go_to_whom_they_are_of() -> None:
    kernel = KernelProfile(name="k(int)")

    def diagnosis(who: Any, round_: int | None = None) -> e.Diagnosed:
        return e.Diagnosed(who=who, round=round_, status="ok", kernels=(kernel,))

    view = folded(diagnosis("baseline"), e.RoundStarted(round=0), diagnosis("candidate", 0))
    assert view.baseline is not None
    assert view.best is not None
    assert (view.best.who, view.candidate and view.candidate.who) == ("baseline", "candidate")
    assert view.rounds[0].kernels == (kernel,)
    view = fold(view, diagnosis("best", 0))
    assert (view.best and view.best.who, view.candidate) == ("best", None)
    assert fold(fold(view, diagnosis("candidate", 0)), e.RoundStarted(round=1)).candidate is None


def test_control_and_what_is_kept() -> None:
    usage = e.Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3)
    view = folded(
        started(review=True),
        e.ControlChanged(running="paused", review=False),
        e.Progress(what="build", text="make"),
        usage,
        remeasured(),
    )
    assert (view.running, view.review) == ("paused", False)
    assert view.progress is not None
    assert view.usage is not None
    assert view.usage.total_tokens == 3


@pytest.mark.parametrize(
    "event",
    [
        e.BuildFinished(round=0, attempt=1, ok=True, exit_code=0, seconds=1.0),
        e.RunFinished(round=0, who="candidate", ok=True, exit_code=0, seconds=1.0),
        e.StateChanged(round=0, before=S.COMPILING, after=S.RUNNING),
        finished(),
    ],
)
def test_progress_ends_with_what_it_was_of(event: Any) -> None:
    view = folded(e.RoundStarted(round=0), e.Progress(what="build"))
    assert view.progress is not None
    assert fold(view, event).progress is None


def test_a_resumed_session_is_not_finished() -> None:
    assert folded(started(), finished(), started(resumed=True)).finished is None


def test_calibration_of_the_best_moves_only_the_best() -> None:
    view = folded(calibrated(), calibrated(who="best", ms=2.0))
    assert (view.base_ms, view.best_ms) == (BASE_MS, 2.0)
