"""Following a journal, and the two reporters that scripts read."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import calibrated, finished, guide_session, report, session, started, write

from tachyon_tui.core import events as e
from tachyon_tui.core.session import SessionError
from tachyon_tui.core.states import IterationState as S
from tachyon_tui.core.view import SessionView
from tachyon_tui.frontends.follow import ReporterThread, follow, last_finish
from tachyon_tui.frontends.jsonl import JsonReporter
from tachyon_tui.frontends.quiet import QuietReporter


class Recorder:
    """Remembers what it was told; ``act`` is called with each event."""

    def __init__(self, act: Any = None) -> None:
        self.seen: list[tuple[int, str, int]] = []
        self.error: SessionError | None = None
        self._act = act

    def event(self, event: Any, view: SessionView) -> None:
        self.seen.append((event.seq, event.type, view.seq))
        if self._act is not None:
            self._act(event)

    def failed(self, error: SessionError) -> None:
        self.error = error


def test_returns_at_the_end_of_the_session(tmp_path: Path) -> None:
    recorder = Recorder()
    view = follow(session(tmp_path, [started(), finished()]), recorder, threading.Event())
    assert recorder.seen == [(1, "session_started", 1), (2, "session_finished", 2)]
    assert view.finished is not None


def test_events_that_come_while_it_follows(tmp_path: Path) -> None:
    paths = session(tmp_path, [started()])

    def go_on(event: Any) -> None:
        if event.type == "session_started":
            write(paths, [calibrated(), finished()], last_seq=1)

    recorder = Recorder(go_on)
    follow(paths, recorder, threading.Event())
    assert [seq for seq, *_rest in recorder.seen] == [1, 2, 3]


def test_what_was_written_before_the_end_is_reported_after_it(tmp_path: Path) -> None:
    paths = session(tmp_path, [started()])
    ended = threading.Event()

    def die(event: Any) -> None:
        if event.type == "session_started":
            write(paths, [calibrated()], last_seq=1)
            ended.set()

    recorder = Recorder(die)
    view = follow(paths, recorder, ended)
    assert [kind for _seq, kind, _view in recorder.seen] == ["session_started", "calibrated"]
    assert view.finished is None


def test_earlier_runs_of_a_resumed_session_are_folded_and_not_reported(tmp_path: Path) -> None:
    paths = session(tmp_path, [started(), calibrated(), finished(exit_code=130)])
    after = last_finish(paths)
    assert after == 3
    write(paths, [started(resumed=True), finished()], last_seq=3)
    recorder = Recorder()
    view = follow(paths, recorder, threading.Event(), after)
    assert [seq for seq, *_rest in recorder.seen] == [4, 5]
    assert view.base_ms is not None


def test_an_old_end_is_no_end(tmp_path: Path) -> None:
    paths = session(tmp_path, [started(), finished(exit_code=130), started(resumed=True), finished()])
    recorder = Recorder()
    follow(paths, recorder, threading.Event())
    assert len(recorder.seen) == 4


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    paths = session(tmp_path, [started()])
    with paths.journal.open("ab") as file:
        file.write(b"rubbish\n")
    recorder = Recorder()
    follow(paths, recorder, threading.Event())
    assert recorder.error is not None
    assert "damaged" in recorder.error.message


def test_waiting_costs_no_cpu(tmp_path: Path) -> None:
    paths = session(tmp_path, [started()])
    looks = []

    class Ended(threading.Event):
        """Set after a hundred looks; waits no time."""

        def wait(self, timeout: float | None = None) -> bool:
            looks.append(timeout)
            if len(looks) == 100:
                self.set()
            return self.is_set()

    begun = time.thread_time()
    follow(paths, Recorder(), Ended())
    used = time.thread_time() - begun
    waited = sum(look or 0.0 for look in looks)
    assert used < 0.005 * waited


class TestThread:
    def test_reports_all(self, tmp_path: Path) -> None:
        recorder = Recorder()
        thread = ReporterThread(session(tmp_path, [started(), finished()]), recorder)
        thread.start()
        assert thread.wait(30)
        assert len(recorder.seen) == 2
        assert thread.view.finished is not None

    def test_finish_without_an_end_in_the_journal(self, tmp_path: Path) -> None:
        recorder = Recorder()
        thread = ReporterThread(session(tmp_path, [started()]), recorder)
        thread.start()
        assert not thread.wait(0.01)
        assert thread.finish(30)
        assert len(recorder.seen) == 1

    def test_a_blocked_reader_blocks_only_the_thread(self, tmp_path: Path) -> None:
        free = threading.Event()
        thread = ReporterThread(
            session(tmp_path, [started(), finished()]), Recorder(lambda _event: free.wait(30))
        )
        thread.start()
        assert not thread.finish(0.01)
        free.set()
        assert thread.finish(30)


class TestJson:
    def test_every_event_is_a_line(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        report(JsonReporter(out, err), guide_session())
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        assert [line["type"] for line in lines] == [event.type for event in guide_session()]
        assert lines[-1]["gain_percent"] == 98.0
        assert lines[-1]["seq"] == len(lines)
        assert err.getvalue() == ""

    def test_nothing_in_it_reaches_a_terminal(self) -> None:
        out = io.StringIO()
        text = "\x1b[31m \x7f \x9b \u202e 归"
        report(JsonReporter(out, io.StringIO()), [e.AgentText(round=0, text=text)])
        assert out.getvalue().isascii()
        assert out.getvalue().rstrip("\n").isprintable()
        assert json.loads(out.getvalue())["text"] == text

    def test_no_number_is_null(self) -> None:
        out = io.StringIO()
        report(
            JsonReporter(out, io.StringIO()), [calibrated(ms=float("nan"), samples_ms=(float("inf"), 1.0))]
        )
        data = json.loads(out.getvalue(), parse_constant=pytest.fail)
        assert (data["ms"], data["samples_ms"]) == (None, [None, 1.0])


class TestQuiet:
    def test_only_the_summary(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        report(QuietReporter(out, err), guide_session())
        assert out.getvalue() == (
            "────────── Optimisation finished (+98.0%) ──────────\n"
            "  Best: iter 6  |  GPU: 110.47ms -> 2.18ms  |  Success: 3, Failed: 7\n"
        )
        assert err.getvalue() == ""

    def test_an_error_goes_to_stderr(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        check = e.PreflightCheck(name="git", status="failed", message="No repository.", fix="git init")
        end = finished(exit_code=2, reason="preflight", base_ms=None, best_ms=None, gain_percent=None)
        report(QuietReporter(out, err), [started(), check, end])
        assert out.getvalue() == ""
        assert err.getvalue() == "✗ git  No repository.\n  Fix: git init\n"

    def test_what_waits_for_a_person_is_said(self) -> None:
        out, err = io.StringIO(), io.StringIO()
        events = [
            e.ReviewRequested(round=2, candidate="2-1", why="touches the host program"),
            e.ControlChanged(running="paused", review=True),
            e.StateChanged(round=2, before=S.REVIEW, after=S.SUCCESS),
        ]
        report(QuietReporter(out, err), events)
        assert "#2 waits for your decision: touches the host program" in err.getvalue()
        assert "tachyon continue" in err.getvalue()
        assert out.getvalue() == ""
