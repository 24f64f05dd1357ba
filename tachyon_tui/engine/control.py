"""The one door for commands: pause, step, steer, skip, stop, review, accept, revert; and the session's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.session import CommandReader
from tachyon_tui.engine.log import EventLog

POLL_SECONDS = 0.05
EXIT_INTERRUPTED = 130


class Interrupted(Exception):
    """The work of a round ends now; not an error of the program or the candidate."""

    def __init__(self, reason: str, exit_code: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code


class Skipped(Interrupted):
    """The user skipped this round."""


class Stopped(Interrupted):
    """The session ends: stop command, signal, total timeout or budget."""


@dataclass
class Hint:
    """A person's words on their way to the agent."""

    id: str
    text: str
    delivered: bool = False
    round: int | None = None


@dataclass(frozen=True)
class RevertAsked:
    """An accepted round is to be taken back before the next round begins."""

    command: str
    round: int


class Control:
    """Reads commands and holds what they changed. All methods are called by the engine's thread."""

    def __init__(
        self,
        commands: CommandReader,
        log: EventLog,
        timeout: float,
        *,
        review: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._commands = commands
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._started = clock()
        self._timeout = timeout
        self._waited = 0.0
        self._last_poll = float("-inf")
        self._running: Literal["running", "pausing", "paused", "stopping"] = "running"
        self._steps = 0
        self._skip = False
        self._stop = False
        self._signal: str = ""
        self._shielded = False
        self._decision: tuple[str, bool] | None = None
        self._hints: list[Hint] = []
        self._accepted_after: Callable[[int], tuple[int, ...] | None] = lambda _round: None
        self.reserve = 0.0
        """Seconds kept back for the final re-measurement."""
        self.review = review
        self.stop_after_round = False
        self.round: int | None = None
        self.candidate = ""
        self.revert: RevertAsked | None = None
        self.heartbeat: Callable[[], None] = lambda: None

    # -- the clock -----------------------------------------------------------------------------------------

    @property
    def waited(self) -> float:
        """Seconds spent waiting for a person so far."""
        return self._waited

    @property
    def elapsed(self) -> float:
        """Seconds of the session, without the time it waited for a person."""
        return self._clock() - self._started - self._waited

    @property
    def left(self) -> float:
        """Seconds until the total timeout, less what the final re-measurement will need."""
        return self._timeout - self.reserve - self.elapsed

    # -- what interrupts -----------------------------------------------------------------------------------

    def signal(self, name: str) -> None:
        """A signal arrived; safe to call from a signal handler."""
        self._signal = name

    def check(self, *, now: bool = False) -> None:
        """Take in commands; raise `Skipped` or `Stopped` when the work must end. Cheap; call it often.

        Commands are read at most twenty times a second, with ``now`` at once.
        """
        self._poll(now=now)
        if self._shielded:
            return
        if self._signal:
            raise Stopped(_("interrupted by {signal}").format(signal=self._signal), EXIT_INTERRUPTED)
        if self._stop:
            raise Stopped(_("stopped by the user"))
        if self.left <= 0:
            raise Stopped(_("the total timeout of {seconds:.0f} s is over").format(seconds=self._timeout))
        if self._skip:
            self._skip = False
            if self.round is not None:
                raise Skipped(_("skipped by the user"))

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """A block that must be finished (a rollback's rebuild): nothing interrupts it, only its own deadline."""
        before, self._shielded = self._shielded, True
        try:
            yield
        finally:
            self._shielded = before

    def allowance(self, timeout: float) -> float:
        """Seconds that a child may take: its own timeout, and not beyond the session's."""
        return timeout if self._shielded else min(timeout, max(1.0, self.left + 1))

    def boundary(self) -> None:
        """A point where the engine may hold: waits here while paused."""
        self.check(now=True)
        if self._shielded or self._running == "running":
            return
        if self._steps > 0:
            self._steps -= 1
            return
        self._set_running("paused")
        self._wait_while(self._held)
        if self._steps > 0:
            self._steps -= 1

    def _held(self) -> bool:
        return self._running == "paused" and self._steps == 0

    def pause(self, why: str = "") -> None:
        """Hold at the next boundary (between rounds of an interactive session, or when a person is needed)."""
        if self._running == "running":
            self._set_running("pausing", why)

    def begin_round(self, number: int) -> None:
        """Commands that name no round mean this one from now on."""
        self.round = number
        self._skip = False

    def end_round(self) -> None:
        """No round is running. A hint that was delivered and not answered waits for the next one."""
        for hint in (h for h in self._hints if h.delivered):
            hint.delivered, hint.round = False, None
            self._log.write(e.HintChanged(hint=hint.id, text=hint.text, status="queued"))
        self.round = None
        self.candidate = ""

    def wait_for_review(self, candidate: str) -> bool:
        """Wait until a person accepts (True) or reverts (False) the candidate; the clock stands still."""
        self.candidate = candidate
        self._decision = None
        try:
            self._wait_while(self._undecided)
        finally:
            self.candidate = ""
        return self._decided()

    def _decided(self) -> bool:
        return self._decision is not None and self._decision[1]

    def _undecided(self) -> bool:
        return self._decision is None

    def _wait_while(self, waiting: Callable[[], bool]) -> None:
        begun, before = self._clock(), self._waited
        try:
            while waiting():
                self._waited = before + self._clock() - begun
                self.check()
                self._sleep(POLL_SECONDS)
        finally:
            self._waited = before + self._clock() - begun

    # -- hints ---------------------------------------------------------------------------------------------

    def take_hints(self) -> list[str]:
        """Hints not yet delivered, in order; they count as delivered from now on."""
        self._poll(now=True)
        fresh = [hint for hint in self._hints if not hint.delivered]
        for hint in fresh:
            hint.delivered, hint.round = True, self.round
            self._log.write(e.HintChanged(hint=hint.id, text=hint.text, status="delivered", round=self.round))
        return [hint.text for hint in fresh]

    def hints_answered(self) -> None:
        """The agent has spoken or acted since it was given the hints."""
        for hint in [h for h in self._hints if h.delivered]:
            self._log.write(e.HintChanged(hint=hint.id, text=hint.text, status="answered", round=hint.round))
            self._hints.remove(hint)

    @property
    def pending_hints(self) -> int:
        """How many hints wait for the next tool boundary."""
        return sum(1 for hint in self._hints if not hint.delivered)

    # -- commands ------------------------------------------------------------------------------------------

    def accepted_from(self, lookup: Callable[[int], tuple[int, ...] | None]) -> None:
        """How to find the accepted rounds that go when one is taken back; None for a round not accepted."""
        self._accepted_after = lookup

    def _poll(self, *, now: bool = False) -> None:
        moment = self._clock()
        if not now and moment - self._last_poll < POLL_SECONDS:
            return
        self._last_poll = moment
        self.heartbeat()
        for command in self._commands.commands():
            if isinstance(command, str):
                self._log.notice(_("A line of commands.jsonl is no command: {line}").format(line=command))
                continue
            ok, message = self._obey(command)
            self._log.write(e.CommandAnswered(command=command.id, kind=command.type, ok=ok, message=message))

    def _obey(self, command: Any) -> tuple[bool, str]:
        match command:
            case c.Steer():
                self._hints.append(Hint(command.id, command.text))
                self._log.write(
                    e.HintChanged(hint=command.id, text=command.text, status="queued", round=self.round)
                )
                return True, _("The agent gets it at the next tool call.")
            case c.Pause():
                if self._running != "running":
                    return True, _("Already {state}.").format(state=self._running)
                self._set_running("pausing")
                return True, _("Pausing after the current tool.")
            case c.Continue() | c.Step() if self._running == "stopping":
                return False, _("Already {state}.").format(state=self._running)
            case c.Continue() if self.candidate:
                return False, _("Round {round} waits for `tachyon accept` or `tachyon revert`.").format(
                    round=self.round
                )
            case c.Continue():
                self._set_running("running")
                return True, _("Going on.")
            case c.Step():
                if self._running == "running":
                    self._set_running("pausing")
                    return True, _("Pausing after the current tool.")
                self._steps += 1
                return True, _("One step.")
            case c.Skip():
                if self.round is None:
                    return False, _("No round is running.")
                self._skip = True
                return True, _("Round {round} is skipped.").format(round=self.round)
            case c.Stop():
                return self._obey_stop(command)
            case c.Review():
                self.review = command.on
                self._set_running(self._running)
                return True, _("Review is on.") if command.on else _("Review is off.")
            case c.Accept():
                return self._decide(command.candidate, True)
            case c.Revert():
                return self._obey_revert(command)
        return False, _("Unknown command.")

    def _obey_stop(self, command: c.Stop) -> tuple[bool, str]:
        if command.after_round:
            self.stop_after_round = True
            self._set_running(self._running)
            return True, _("Stopping after this round.")
        self._stop = True
        self._set_running("stopping")
        return True, _("Stopping; the tree is put back to the last accepted state.")

    def _decide(self, candidate: str, accept: bool) -> tuple[bool, str]:
        if not self.candidate or self._decision is not None:
            return False, _("No candidate waits for a decision.")
        if candidate and candidate != self.candidate:
            return False, _("Candidate {old} is gone; {new} waits now.").format(
                old=candidate, new=self.candidate
            )
        self._decision = (self.candidate, accept)
        return True, _("Accepted.") if accept else _("Reverted.")

    def _obey_revert(self, command: c.Revert) -> tuple[bool, str]:
        if command.round is None:
            return self._decide(command.candidate, False)
        gone = self._accepted_after(command.round)
        if gone is None:
            return False, _("Round {round} is not an accepted round.").format(round=command.round)
        if len(gone) > 1 and not command.confirmed:
            later = ", ".join(f"#{number}" for number in gone[1:])
            return False, _(
                "Later accepted rounds go with it: {later}. Repeat with --yes to confirm."
            ).format(later=later)
        if self.revert is None or command.round < self.revert.round:  # later rounds go with an earlier one
            self.revert = RevertAsked(command.id, command.round)
        return True, _("Round {round} is taken back before the next round.").format(round=command.round)

    def _set_running(
        self, running: Literal["running", "pausing", "paused", "stopping"], why: str = ""
    ) -> None:
        self._running = running
        if running == "running":
            self._steps = 0
        self._log.write(e.ControlChanged(running=running, review=self.review, why=why))
