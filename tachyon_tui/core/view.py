"""`SessionView`: the state that every reader shows, an immutable fold over the events.

The stream of what the agent said and did is bounded: a long session costs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tachyon_tui.core import events as e
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.states import IterationState

STREAM_LIMIT = 400
TEXT_LIMIT = 20_000
NOTICE_LIMIT = 50
T = TypeVar("T")


@dataclass(frozen=True)
class StreamItem:
    """One entry of the agent's stream."""

    kind: Literal["text", "tool", "hint", "build", "run", "notice"]
    round: int | None
    text: str
    id: str = ""
    tool: str = ""
    arguments: str = ""
    state: Literal["", "running", "ok", "failed", "queued", "delivered", "answered"] = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class RoundView:
    """One round as shown in the history."""

    number: int
    state: IterationState = IterationState.PENDING
    reason: str = ""
    summary: str = ""
    ms: float | None = None
    change_percent: float | None = None
    total_percent: float | None = None
    commit: str = ""
    patch: str = ""
    diff: str = ""
    touches_host: str = ""
    seconds: float = 0.0
    runs: int = 0
    builds: int = 0
    calls: int = 0
    measured: bool = False
    reverted: bool = False
    started: float = 0.0
    state_since: float = 0.0
    verdict: e.Verdict | None = None
    kernels: tuple[KernelProfile, ...] = ()

    @property
    def accepted(self) -> bool:
        """Accepted and not taken back since."""
        return self.state is IterationState.SUCCESS and not self.reverted


@dataclass(frozen=True)
class SessionView:
    """Everything a front end shows of one session."""

    seq: int = 0
    now: float = 0.0
    """Time of the last event folded, s since the epoch."""
    started: e.SessionStarted | None = None
    checks: tuple[e.PreflightCheck, ...] = ()
    running: Literal["running", "pausing", "paused", "stopping"] = "running"
    review: bool = False
    waiting: e.ReviewRequested | None = None
    calibration: e.Calibrated | None = None
    base_ms: float | None = None
    best_ms: float | None = None
    best_round: int | None = None
    baseline: e.Diagnosed | None = None
    best: e.Diagnosed | None = None
    """Latest diagnosis of the incumbent."""
    candidate: e.Diagnosed | None = None
    rounds: tuple[RoundView, ...] = ()
    stream: tuple[StreamItem, ...] = ()
    stream_dropped: int = 0
    hints: tuple[e.HintChanged, ...] = ()
    notices: tuple[e.Notice, ...] = ()
    progress: e.Progress | None = None
    gpu: e.GpuSampled | None = None
    usage: e.Usage | None = None
    remeasured: e.Remeasured | None = None
    finished: e.SessionFinished | None = None

    @property
    def round(self) -> RoundView | None:
        """The latest round."""
        return self.rounds[-1] if self.rounds else None

    @property
    def accepted(self) -> tuple[RoundView, ...]:
        """Rounds that stand as commits, oldest first."""
        return tuple(r for r in self.rounds if r.accepted)

    def round_view(self, number: int) -> RoundView | None:
        """The round of that number, None when there is none."""
        for item in reversed(self.rounds):
            if item.number == number:
                return item
        return None


def fold(view: SessionView, event: Any) -> SessionView:
    """The view after one more event; an event of an unknown type only moves ``seq``."""
    handler = _HANDLERS.get(type(event))
    if handler is not None:
        view = handler(view, event)
    return _with(view, seq=event.seq, now=event.time)


def fold_all(events: Iterable[Any], view: SessionView | None = None) -> SessionView:
    """The view after all events."""
    view = view or SessionView()
    for event in events:
        view = fold(view, event)
    return view


def _with(item: T, **changes: Any) -> T:
    """As `dataclasses.replace`, at a tenth of its cost: whoever attaches folds a long journal at once."""
    assert changes.keys() <= vars(item).keys(), changes.keys()
    changed = object.__new__(type(item))
    fields = vars(changed)
    fields.update(vars(item))
    fields.update(changes)
    return changed


def _set_round(view: SessionView, number: int, **changes: Any) -> SessionView:
    rounds = view.rounds
    for index in range(len(rounds) - 1, -1, -1):
        if rounds[index].number == number:
            changed = _with(rounds[index], **changes)
            return _with(view, rounds=(*rounds[:index], changed, *rounds[index + 1 :]))
    return view


def _push(view: SessionView, item: StreamItem) -> SessionView:
    stream = (*view.stream, item)
    extra = len(stream) - STREAM_LIMIT
    if extra > 0:
        return _with(view, stream=stream[extra:], stream_dropped=view.stream_dropped + extra)
    return _with(view, stream=stream)


def _change_item(view: SessionView, item_id: str, **changes: Any) -> SessionView:
    stream = view.stream
    for index in range(len(stream) - 1, -1, -1):
        if stream[index].id == item_id:
            return _with(
                view, stream=(*stream[:index], _with(stream[index], **changes), *stream[index + 1 :])
            )
    return view


def _on_started(view: SessionView, event: e.SessionStarted) -> SessionView:
    return _with(view, started=event, review=event.review, finished=None)


def _on_check(view: SessionView, event: e.PreflightCheck) -> SessionView:
    return _with(view, checks=(*view.checks, event)[-NOTICE_LIMIT:])


def _on_calibrated(view: SessionView, event: e.Calibrated) -> SessionView:
    if event.who == "baseline":
        return _with(view, calibration=event, base_ms=event.ms, best_ms=event.ms)
    return _with(view, calibration=event, best_ms=event.ms)


def _on_diagnosed(view: SessionView, event: e.Diagnosed) -> SessionView:
    if event.round is not None and event.kernels:
        view = _set_round(view, event.round, kernels=event.kernels)
    if event.who == "baseline":
        return _with(view, baseline=event, best=event)
    if event.who == "best":
        return _with(view, best=event, candidate=None)
    return _with(view, candidate=event)


def _on_round_started(view: SessionView, event: e.RoundStarted) -> SessionView:
    item = RoundView(event.round, started=event.time, state_since=event.time)
    return _with(view, rounds=(*view.rounds, item), candidate=None, progress=None)


def _on_state(view: SessionView, event: e.StateChanged) -> SessionView:
    waiting = view.waiting if event.after is IterationState.REVIEW else None
    return _set_round(
        _with(view, waiting=waiting, progress=None), event.round, state=event.after, state_since=event.time
    )


def _on_text(view: SessionView, event: e.AgentText) -> SessionView:
    last = view.stream[-1] if view.stream else None
    if last and last.kind == "text" and last.round == event.round and len(last.text) < TEXT_LIMIT:
        joined = _with(last, text=last.text + event.text)
        return _with(view, stream=(*view.stream[:-1], joined))
    return _push(view, StreamItem("text", event.round, event.text))


def _on_tool_called(view: SessionView, event: e.ToolCalled) -> SessionView:
    item = StreamItem(
        "tool", event.round, "", event.call, event.tool, arguments=event.arguments, state="running"
    )
    return _push(view, item)


def _on_tool_finished(view: SessionView, event: e.ToolFinished) -> SessionView:
    state: Literal["ok", "failed"] = "ok" if event.ok else "failed"
    return _change_item(view, event.call, text=event.text, state=state, seconds=event.seconds)


def _on_edited(view: SessionView, event: e.Edited) -> SessionView:
    return _set_round(view, event.round, diff=event.diff, touches_host=event.touches_host)


def _on_build(view: SessionView, event: e.BuildFinished) -> SessionView:
    view = _with(view, progress=None)
    state: Literal["ok", "failed"] = "ok" if event.ok else "failed"
    return _push(
        view,
        StreamItem("build", event.round, event.message or event.tail, state=state, seconds=event.seconds),
    )


def _on_run(view: SessionView, event: e.RunFinished) -> SessionView:
    view = _with(view, progress=None)
    if event.round is not None and event.who == "candidate" and event.ms is not None:
        view = _set_round(view, event.round, ms=event.ms)
    return view


def _on_verdict(view: SessionView, event: e.Verdict) -> SessionView:
    return _set_round(view, event.round, verdict=event, reason=event.reason)


def _on_round_finished(view: SessionView, event: e.RoundFinished) -> SessionView:
    view = _set_round(
        view,
        event.round,
        state=event.state,
        reason=event.reason,
        summary=event.summary,
        ms=event.ms,
        change_percent=event.change_percent,
        total_percent=event.total_percent,
        commit=event.commit,
        patch=event.patch,
        seconds=event.seconds,
        runs=event.runs,
        builds=event.builds,
        calls=event.calls,
        measured=event.measured,
    )
    if event.state is IterationState.SUCCESS:
        return _with(view, best_ms=event.ms, best_round=event.round, waiting=None)
    return _with(view, waiting=None)


def _on_reverted(view: SessionView, event: e.Reverted) -> SessionView:
    for number in event.rounds:
        view = _set_round(view, number, reverted=True)
    standing = view.accepted
    return _with(view, best_ms=event.best_ms, best_round=standing[-1].number if standing else None)


def _on_hint(view: SessionView, event: e.HintChanged) -> SessionView:
    hints = (*(h for h in view.hints if h.hint != event.hint), event)
    view = _with(view, hints=hints)
    if event.status == "queued":
        return _push(view, StreamItem("hint", event.round, event.text, event.hint, state="queued"))
    return _change_item(view, event.hint, state=event.status)


def _on_control(view: SessionView, event: e.ControlChanged) -> SessionView:
    return _with(view, running=event.running, review=event.review)


def _on_notice(view: SessionView, event: e.Notice) -> SessionView:
    if event.level == "debug":
        return view
    return _with(view, notices=(*view.notices, event)[-NOTICE_LIMIT:])


def _keep(field: str) -> Callable[[SessionView, Any], SessionView]:
    def handler(view: SessionView, event: Any) -> SessionView:
        return _with(view, **{field: event})

    return handler


def _on_finished(view: SessionView, event: e.SessionFinished) -> SessionView:
    return _with(view, finished=event, progress=None, waiting=None)


_HANDLERS: dict[type, Callable[[SessionView, Any], SessionView]] = {
    e.SessionStarted: _on_started,
    e.PreflightCheck: _on_check,
    e.Calibrated: _on_calibrated,
    e.Diagnosed: _on_diagnosed,
    e.RoundStarted: _on_round_started,
    e.StateChanged: _on_state,
    e.AgentText: _on_text,
    e.ToolCalled: _on_tool_called,
    e.ToolFinished: _on_tool_finished,
    e.Edited: _on_edited,
    e.BuildFinished: _on_build,
    e.RunFinished: _on_run,
    e.Progress: _keep("progress"),
    e.Verdict: _on_verdict,
    e.ReviewRequested: _keep("waiting"),
    e.RoundFinished: _on_round_finished,
    e.Reverted: _on_reverted,
    e.HintChanged: _on_hint,
    e.ControlChanged: _on_control,
    e.Usage: _keep("usage"),
    e.GpuSampled: _keep("gpu"),
    e.Notice: _on_notice,
    e.Remeasured: _keep("remeasured"),
    e.SessionFinished: _on_finished,
}
