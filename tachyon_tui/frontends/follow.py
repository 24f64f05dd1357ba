"""Follows a session's journal and hands every event, with the view after it, to a reporter."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from tachyon_tui.core.session import JournalReader, LineFollower, SessionError, SessionPaths, parse_event
from tachyon_tui.core.view import SessionView, fold

POLL_SECONDS = 0.1


class Reporter(Protocol):
    """Shows a session; called in the order of the journal, from one thread."""

    def event(self, event: Any, view: SessionView) -> None:
        """One more event; ``view`` is the state after it."""
        ...

    def failed(self, error: SessionError) -> None:
        """The journal cannot be read any further."""
        ...


def follow(paths: SessionPaths, reporter: Reporter, ended: threading.Event, after: int = 0) -> SessionView:
    """Report events until the session has finished, or ``ended`` is set and nothing more comes.

    Events up to number ``after`` (earlier runs of a resumed session) are folded and not reported. Looks ten times
    a second; returns the last view.
    """
    reader = JournalReader(paths)
    view = SessionView()
    while True:
        last_look = ended.is_set()
        try:
            for event in reader.events():
                view = fold(view, event)
                if event.seq > after:
                    reporter.event(event, view)
        except SessionError as error:
            reporter.failed(error)
            return view
        if last_look or (view.finished is not None and view.finished.seq == view.seq > after):
            return view
        ended.wait(POLL_SECONDS)


def last_finish(paths: SessionPaths) -> int:
    """Number of the latest end of the session in the journal, 0 when it never ended."""
    number = 0
    for line in LineFollower(paths.journal).lines():
        if b'"type":"session_finished"' in line and (event := parse_event(line)) is not None:
            number = event.seq
    return number


class ReporterThread:
    """`follow` in a thread of its own, so that a blocked stdout never blocks the engine."""

    def __init__(self, paths: SessionPaths, reporter: Reporter, after: int = 0) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(paths, reporter, after), name="reporter", daemon=True
        )
        self.view = SessionView()
        """The last view, once the thread has ended."""

    def _run(self, paths: SessionPaths, reporter: Reporter, after: int) -> None:
        self.view = follow(paths, reporter, self._ended, after)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the end of the session; True when all of it was reported."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def finish(self, timeout: float) -> bool:
        """Nothing more will be written: report the rest. False when that took longer than ``timeout`` s."""
        self._ended.set()
        return self.wait(timeout)
