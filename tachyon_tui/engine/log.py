"""The engine's pen: writes events to the journal and joins streams of text to ten events a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from tachyon_tui.core import events as e
from tachyon_tui.core.session import Journal

TEXT_INTERVAL = 0.1
PROGRESS_INTERVAL = 0.25


class EventLog:
    """Appends events; streams are throttled so that no reader and no disk is flooded."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._clock = clock
        self._text = ""
        self._text_round = -1
        self._text_since = 0.0
        self._progress_at = float("-inf")

    def write(self, event: Any) -> Any:
        """Append one event, after what is pending of the stream; returns it as written."""
        self.flush()
        return self._journal.append(event)

    def notice(
        self, message: str, fix: str = "", level: Literal["debug", "info", "warning", "error"] = "info"
    ) -> None:
        """Append a message for the person."""
        self.write(e.Notice(level=level, message=message, fix=fix))

    def stream(self, round_number: int, text: str) -> None:
        """Add a piece of the agent's prose."""
        now = self._clock()
        if round_number != self._text_round:
            self.flush()
        if not self._text:
            self._text_since, self._text_round = now, round_number
        self._text += text
        if now - self._text_since >= TEXT_INTERVAL:
            self.flush()

    def tick(self) -> None:
        """Write what has waited its tenth of a second; to be called while nothing new comes."""
        if self._text and self._clock() - self._text_since >= TEXT_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Write what is pending of the stream."""
        if self._text:
            text, self._text = self._text, ""
            self._journal.append(e.AgentText(round=self._text_round, text=text))

    def progress(
        self,
        what: Literal["build", "run", "ncu", "check"],
        text: str = "",
        fraction: float | None = None,
        round_number: int | None = None,
    ) -> None:
        """Say how far long work is; at most four times a second."""
        now = self._clock()
        if now - self._progress_at >= PROGRESS_INTERVAL:
            self._progress_at = now
            self.write(e.Progress(what=what, text=text[-200:], fraction=fraction, round=round_number))
