"""How the checks before a session report: what is well, what to know, and what keeps it from starting."""

from __future__ import annotations

from tachyon_tui.core import events as e
from tachyon_tui.engine.log import EventLog


class PreflightFailed(Exception):
    """The session cannot start; the message says why and ``fix`` what to do."""

    def __init__(self, name: str, message: str, fix: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.fix = fix
        self.exit_code = exit_code


class Checks:
    """Writes the outcome of each check to the journal; a failed one is raised instead."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def ok(self, name: str, message: str) -> None:
        """The check passed."""
        self._log.write(e.PreflightCheck(name=name, status="ok", message=message))

    def warn(self, name: str, message: str, fix: str = "") -> None:
        """The session goes on, with something a person should know."""
        self._log.write(e.PreflightCheck(name=name, status="warning", message=message, fix=fix))
