"""Speaks to a running session from another shell: a command goes in, the engine's answer comes back."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tachyon_tui.core.i18n import _
from tachyon_tui.core.session import (
    LineFollower,
    SessionError,
    SessionPaths,
    append_command,
    find_session,
    list_sessions,
    parse_event,
)
from tachyon_tui.frontends.sessions import running

ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Answer:
    """What became of a command."""

    ok: bool
    message: str


def running_session(root: Path, name: str = "") -> SessionPaths:
    """The named session, else the latest one that an engine holds.

    Raises `SessionError` when there is none, or no engine runs there.
    """
    hint = _("List them with `tachyon sessions`; start one with `tachyon evolve`.")
    if name:
        paths = find_session(root, name)
        if not running(paths):
            raise SessionError(_("No engine is running in session {session}.").format(session=paths.id), hint)
        return paths
    alive = [paths for paths in list_sessions(root) if running(paths)]
    if not alive:
        raise SessionError(_("No engine is running in any session of {root}.").format(root=root), hint)
    return alive[-1]


def send(paths: SessionPaths, command: Any, seconds: float = ANSWER_SECONDS) -> Answer:
    """Append the command and wait at most ``seconds`` for its answer. Raises `SessionError`."""
    follower = LineFollower(paths.journal)
    append_command(paths, command)
    deadline = time.monotonic() + seconds
    wanted = command.id.encode()
    never = threading.Event()
    while True:
        alive, late = running(paths), time.monotonic() >= deadline
        for line in follower.lines():
            event = parse_event(line) if wanted in line else None
            if event is not None and event.type == "command_answered" and event.command == command.id:
                return Answer(event.ok, event.message)
        if not alive:
            return Answer(False, _("The engine ended before it answered."))
        if late:
            return Answer(True, _("Sent. The engine is busy and will answer at its next step."))
        never.wait(POLL_SECONDS)
