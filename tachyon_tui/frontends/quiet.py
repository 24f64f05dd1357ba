"""Only the final summary on stdout; on stderr what went wrong, and what waits for a person."""

from __future__ import annotations

from typing import Any, TextIO

from tachyon_tui.core.i18n import _
from tachyon_tui.core.session import SessionError
from tachyon_tui.core.view import SessionView
from tachyon_tui.frontends.plain import (
    check_lines,
    failure_lines,
    got_going,
    summary_lines,
    unconfirmed,
    with_fix,
)
from tachyon_tui.frontends.text import LineWriter, clean, one_line


class QuietReporter:
    """Says nothing until the end, except errors."""

    def __init__(self, out: TextIO, err: TextIO, *, ascii: bool = False) -> None:  # noqa: A002
        self._out = LineWriter(out, ascii=ascii)
        self._err = LineWriter(err, ascii=ascii)

    def event(self, event: Any, view: SessionView) -> None:
        """Print the summary at the end, and errors when they come."""
        lines: list[str] = []
        if event.type == "preflight_check" and event.status == "failed":
            lines = check_lines(event)
        elif event.type == "notice" and event.level == "error":
            lines = with_fix(clean(event.message), event.fix)
        elif event.type == "review_requested":
            lines = [
                _("#{round} waits for your decision: {why}").format(
                    round=event.round, why=one_line(event.why, 300)
                )
            ]
        elif event.type == "control_changed" and event.running == "paused":
            lines = [_("Paused{why}. Go on with: {command}").format(why="", command="tachyon continue")]
        elif event.type == "remeasured" and not event.confirmed:
            lines = [unconfirmed(view)]
        elif event.type == "session_finished":
            lines = failure_lines(event, view)
            if got_going(event, view):
                for line in summary_lines(event):
                    self._out.line(line)
        for line in lines:
            self._err.line(line)

    def failed(self, error: SessionError) -> None:
        """The journal cannot be read."""
        for line in with_fix(clean(error.message), error.fix):
            self._err.line(line)
