"""Small journals made of the event classes, and reporters' output as text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tachyon_tui.core import events as e
from tachyon_tui.core.session import EngineLock, Journal, SessionPaths
from tachyon_tui.core.states import IterationState as S
from tachyon_tui.core.view import SessionView, fold
from tachyon_tui.frontends.follow import Reporter

BASE_MS = 110.47


def session(folder: Path, events: Iterable[Any] = (), settings: str = "{}") -> SessionPaths:
    """A session directory whose journal holds the events."""
    paths = SessionPaths(folder / ".tachyon" / "sessions" / "20260101-120000-app")
    paths.folder.mkdir(parents=True)
    paths.settings.write_text(settings, "utf-8")
    paths.commands.touch()
    write(paths, events)
    return paths


def write(paths: SessionPaths, events: Iterable[Any], last_seq: int = 0) -> None:
    """Append the events to the journal."""
    journal = Journal(paths, last_seq)
    for event in events:
        journal.append(event)
    journal.close()


def report(reporter: Reporter, events: Iterable[Any]) -> SessionView:
    """Hand the events to a reporter, numbered as a journal would; returns the last view."""
    view = SessionView()
    for number, event in enumerate(events, 1):
        numbered = event.model_copy(update={"seq": number, "time": 1000.0 + number})
        view = fold(view, numbered)
        reporter.event(numbered, view)
    return view


class Closed(io.StringIO):
    """A stream whose reader has gone away: a fake pipe."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.tries = 0

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError


def hold(paths: SessionPaths) -> EngineLock:
    """Take the session's lock, as an engine in this process would."""
    lock = EngineLock(paths.lock, paths.id)
    lock.acquire()
    return lock


def started(**changes: Any) -> e.SessionStarted:
    values: dict[str, Any] = {
        "session": "20260101-120000-app",
        "program": "./app",
        "max_rounds": 10,
        "timeout": 3600.0,
        "instrument": "cupti",
        "machine": "one GPU",
        "agent": "test/model",
        "head": "f" * 40,
    }
    return e.SessionStarted(**(values | changes))


def calibrated(**changes: Any) -> e.Calibrated:
    values: dict[str, Any] = {
        "who": "baseline",
        "ms": BASE_MS,
        "samples_ms": (BASE_MS,) * 5,
        "noise_percent": 0.12,
        "visible_percent": 1.42,
        "instrument": "cupti",
        "oracle": "12 numbers and 4 words of stdout",
    }
    return e.Calibrated(**(values | changes))


def round_finished(number: int, state: S, **changes: Any) -> e.RoundFinished:
    values: dict[str, Any] = {"reason": "", "base_ms": BASE_MS}
    return e.RoundFinished(round=number, state=state, **(values | changes))


def measured(
    number: int, state: S, ms: float, change: float, total: float, **changes: Any
) -> e.RoundFinished:
    """A round that was measured."""
    values = {"ms": ms, "change_percent": change, "total_percent": total, "measured": True} | changes
    return round_finished(number, state, **values)


def guide_rounds() -> list[Any]:
    """The measured rounds of the guide's log, as events."""
    rounds = [
        measured(0, S.ROLLED_BACK, 110.48, 0.009, -0.009, reason="no gain", summary="first try"),
        measured(1, S.SUCCESS, 2.43, -97.8, 97.8, reason="gain", summary="tree", commit="a" * 40),
        round_finished(2, S.FAILED, reason="compile_kernel was not called."),
        round_finished(3, S.ROLLED_BACK, reason="Binary crashed (exit code 1)."),
        measured(4, S.ROLLED_BACK, 2.54, 4.5, 97.7, reason="no gain"),
        measured(5, S.SUCCESS, 2.28, -5.9, 97.9, reason="gain", commit="b" * 40),
        measured(6, S.SUCCESS, 2.18, -4.4, 98.0, reason="gain", commit="c" * 40),
    ]
    return [event for done in rounds for event in (e.RoundStarted(round=done.round), done)]


def remeasured(**changes: Any) -> e.Remeasured:
    values: dict[str, Any] = {
        "base_ms": BASE_MS,
        "best_ms": 2.18,
        "gain_percent": 98.03,
        "low_percent": 98.01,
        "high_percent": 98.05,
        "pairs": 5,
        "confirmed": True,
    }
    return e.Remeasured(**(values | changes))


def finished(**changes: Any) -> e.SessionFinished:
    values: dict[str, Any] = {
        "reason": "round limit reached",
        "exit_code": 0,
        "best_round": 6,
        "base_ms": BASE_MS,
        "best_ms": 2.18,
        "gain_percent": 98.0,
        "confirmed": True,
        "succeeded": 3,
        "failed": 7,
        "seconds": 600.0,
    }
    return e.SessionFinished(**(values | changes))


def guide_session() -> list[Any]:
    """The guide's session from start to end."""
    return [started(), calibrated(), *guide_rounds(), remeasured(), finished()]
