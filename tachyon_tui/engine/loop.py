"""The session from its first event to its last: preflight, rounds, stop rules, final re-measurement."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import exp, log
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING

from tachyon_tui.agents.base import Agent, AgentError
from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.session import CommandReader, EngineLock, Journal, SessionError, SessionPaths
from tachyon_tui.core.states import IterationState
from tachyon_tui.core.units import gain_percent
from tachyon_tui.engine.bench import Role, RunFailed
from tachyon_tui.engine.checks import PreflightFailed
from tachyon_tui.engine.control import Control, Interrupted
from tachyon_tui.engine.diagnosis import floor_ms_per_run
from tachyon_tui.engine.iteration import IncumbentBroken
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.engine.preflight import Preflight
from tachyon_tui.engine.recalibrate import after_foreign_change
from tachyon_tui.engine.reverting import revert_round
from tachyon_tui.engine.rounds import RoundResult, play_round, roll_back
from tachyon_tui.engine.site import Site
from tachyon_tui.engine.stopping import RoundRecord, at_floor, converged
from tachyon_tui.engine.student import paired_interval
from tachyon_tui.profilers.ncu import NcuMissing
from tachyon_tui.workspace.builds import CannotKeep
from tachyon_tui.workspace.git import HeadMoved
from tachyon_tui.workspace.problems import ForeignChange, Problem
from tachyon_tui.workspace.runner import become_subreaper

if TYPE_CHECKING:
    from tachyon_tui.engine.start import Request

EXIT_IMPROVED, EXIT_ERROR, EXIT_USAGE, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
PAIRS, MORE_PAIRS = 5, 10
FINAL_RUNS = 2 + 2 * PAIRS
BROKEN_OFF = (Problem, IncumbentBroken, NcuMissing, CannotKeep, OSError)
"""What ends a session in the midst of its work: the outside world, not the candidate and not a bug."""


class Engine:
    """Plays one session; the only writer of its journal."""

    def __init__(
        self, request: Request, root: Path, paths: SessionPaths, agent: Agent, tree_lock: EngineLock
    ) -> None:
        self._request = request
        self._root = root
        self._paths = paths
        self._agent = agent
        self._locks = [tree_lock, EngineLock(paths.lock, paths.id)]
        self._locks[1].acquire()
        self._journal = Journal(paths)
        self._log = EventLog(self._journal)
        self._ledger = Ledger()
        self._control = Control(
            CommandReader(paths),
            self._log,
            request.settings.timeout,
            review=request.interactive,
        )
        self._control.heartbeat = self._beat
        self._control.accepted_from(self._accepted_from)
        self._records: list[RoundRecord] = []
        self._accepted: list[int] = []
        self._states: list[IterationState] = []
        self._site: Site | None = None
        self._began = time.monotonic()
        self._reason = ""
        self._fix = ""
        self._exit_code: int | None = None
        self._remeasured: e.Remeasured | None = None

    def _beat(self) -> None:
        for lock in self._locks:
            lock.beat()

    def _accepted_from(self, number: int) -> tuple[int, ...] | None:
        """The accepted rounds that go when ``number`` is taken back, itself first."""
        if number not in self._accepted:
            return None
        return tuple(self._accepted[self._accepted.index(number) :])

    def run(self) -> int:
        """Play the session; returns the exit code. To be called in the main thread, for the signals' sake.

        Raises `SessionError` when the journal cannot be written; the source is then as last accepted, or the message
        says that it is not.
        """
        become_subreaper()
        try:
            with self._signals():
                try:
                    return self._run()
                except SessionError as error:
                    raise SessionError(f"{error.message} {self._put_back()}".strip(), error.fix) from error
        finally:
            self._journal.close()
            for folder in (self._paths.scratch, self._paths.builds):
                shutil.rmtree(folder, ignore_errors=True)
            for lock in self._locks:
                lock.release()

    def _run(self) -> int:
        self._start()
        try:
            self._play()
        except PreflightFailed as failed:
            self._log.write(
                e.PreflightCheck(name=failed.name, status="failed", message=failed.message, fix=failed.fix)
            )
            self._end(failed.message, failed.exit_code, failed.fix)
        except Interrupted as stop:
            self._end_interrupted(stop)
        except BROKEN_OFF as error:
            self._break_off(error)
        except SessionError:
            raise
        except BaseException:
            self._put_back()  # a bug of ours must not leave a candidate in the user's tree
            raise
        return self._finish()

    def _end_interrupted(self, stop: Interrupted) -> None:
        """The session ends outside of a round: the tree is as last accepted."""
        if self._site is None and stop.exit_code is None and self._control.left <= 0:
            fix = _("The checks alone take longer: raise --timeout, or `timeout` in .tachyon/evolve.toml.")
            self._end(stop.reason, EXIT_USAGE, fix)
        else:
            self._end(stop.reason, stop.exit_code)

    def _break_off(self, error: Exception) -> None:
        """End with the error's message and fix, the tree as last accepted."""
        message, fix = _explained(error)
        # What is not as we left it is in somebody else's hands: it stays as it is.
        left = "" if isinstance(error, (ForeignChange, HeadMoved)) else self._put_back()
        self._end(f"{message} {left}".strip(), EXIT_ERROR if self._site else EXIT_USAGE, fix)

    def _put_back(self) -> str:
        """Bring back the last accepted source and build without the journal; what became of it, in words."""
        site = self._site
        if site is None:
            return ""
        try:
            if not site.tree.restore(site.incumbent.files):
                return ""
            site.bench.incumbent_rebuilt()
            if site.bench.has("A"):
                site.bench.place("A")
        except BROKEN_OFF as error:
            return _("The last accepted state could not be put back: {why}").format(why=_explained(error)[0])
        return _("The source was put back as last accepted.")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def on_signal(number: int, _frame: FrameType | None) -> None:
            self._control.signal(signal.Signals(number).name)

        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup(1) leaves it
            wanted.append(signal.SIGHUP)
        before = {number: signal.signal(number, on_signal) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        request, settings = self._request, self._request.settings
        self._log.write(
            e.SessionStarted(
                session=self._paths.id,
                program=" ".join([request.executable, *request.exe_args]),
                target_kernel=settings.target_kernel,
                max_rounds=settings.max_iterations,
                timeout=settings.timeout,
                instrument=settings.profiler,
                agent=settings.llm.model,
                machine=_machine(),
                review=request.interactive,
            )
        )

    # -- the loop ------------------------------------------------------------------------------------------

    def _play(self) -> None:
        preflight = Preflight(
            self._request,
            self._root,
            self._paths,
            self._log,
            self._control,
            self._ledger,
            self._agent,
        )
        site = self._site = preflight.run()
        try:
            self._rounds(site)
            self._revert_if_asked(site)
        except Interrupted as stop:
            self._end(stop.reason, stop.exit_code)
        if self._exit_code is None and self._accepted:
            if site.bench.has("original"):
                self._remeasure(site)
            else:
                self._unfinished(_("the original's build could not be kept"))

    def _rounds(self, site: Site) -> None:
        number = 0
        last = site.settings.max_iterations
        while number < last:
            reason = self._stop_reason(site)
            if reason:
                self._end(reason)
                return
            self._between_rounds(site)
            if self._control.stop_after_round:
                self._end(_("stopped by the user after a round"))
                return
            result = self._round(site, number)
            number += 1
            if isinstance(result.failure, AgentError):
                last += 1
            if self._reason:
                return
        self._end(_("the limit of {count} rounds is reached").format(count=site.settings.max_iterations))

    def _between_rounds(self, site: Site) -> None:
        if self._request.interactive and self._states:
            self._control.pause(_("between rounds"))
        self._reserve(site)
        with self._ledger.spend("person"):
            self._control.boundary()
        self._revert_if_asked(site)
        changed = site.tamper.changed()
        if changed:
            after_foreign_change(site, changed)

    def _revert_if_asked(self, site: Site) -> None:
        self._control.check(now=True)
        asked, self._control.revert = self._control.revert, None
        gone = self._accepted_from(asked.round) if asked is not None else None
        if gone:
            left = [number for number in self._accepted if number not in gone]
            try:
                revert_round(site, gone, left)
            finally:
                if site.incumbent.round == (left[-1] if left else None):
                    self._accepted = left

    def _reserve(self, site: Site) -> None:
        """Keep back what the final re-measurement will take, once there is something to re-measure."""
        walls = site.incumbent.walls
        if self._accepted and walls:
            self._control.reserve = min(FINAL_RUNS * median(walls) * 1.2, site.settings.timeout / 4)

    def _round(self, site: Site, number: int) -> RoundResult:
        result = play_round(site, number)
        self._records.append(result.record)
        self._states.append(result.state)
        if result.state is IterationState.SUCCESS:
            self._accepted.append(number)
        if result.stop is not None:
            self._end(result.stop.reason, result.stop.exit_code)
        if isinstance(result.failure, AgentError | Problem) and site.attended:
            self._ask_for_help(site, result.failure)
        elif isinstance(result.failure, AgentError):
            self._end(result.failure.message, EXIT_ERROR, result.failure.fix)
        elif result.failure is not None:
            self._break_off(result.failure)
        if result.state is not IterationState.SUCCESS and not site.settings.git.auto_rollback:
            self._end(
                _("round {number} was rejected and is left in place (auto_rollback = false)").format(
                    number=number
                ),
                EXIT_NOTHING,
            )
        return result

    def _ask_for_help(self, site: Site, failure: AgentError | Problem) -> None:
        """Pause until the person has put right what only a person can, then put the incumbent's files back."""
        while not self._reason:
            self._log.notice(failure.message, failure.fix, "error")
            self._control.pause(failure.message)
            with self._ledger.spend("person"):
                self._control.boundary()
            if isinstance(failure, AgentError):
                return
            if isinstance(failure, HeadMoved):
                self._end(failure.message, EXIT_ERROR, failure.fix)
                return
            try:
                roll_back(site, None)
            except Problem as again:
                failure = again
            else:
                return

    def _stop_reason(self, site: Site) -> str:
        settings = site.settings
        floor_ms = floor_ms_per_run(site.base_profiles, settings.floor.bytes)
        return converged(self._records, settings.convergence, site.judge.visible) or at_floor(
            site.incumbent.ms, floor_ms, settings.floor.stop
        )

    def _end(self, reason: str, exit_code: int | None = None, fix: str = "") -> None:
        """Note why the session ends; the first reason stands."""
        if not self._reason:
            self._reason, self._exit_code, self._fix = reason, exit_code, fix

    # -- the end -------------------------------------------------------------------------------------------

    def _remeasure(self, site: Site) -> None:
        """Original and best in turn, fresh runs only: the paired gain with its 95 % interval is what is reported."""
        self._control.reserve = 0.0
        try:
            self._remeasured = self._pairs(site)
        except Interrupted as stop:
            self._unfinished(stop.reason)
            if stop.exit_code is not None:
                self._reason, self._exit_code = stop.reason, stop.exit_code
        except RunFailed as failure:
            self._unfinished(failure.reason)
        except BROKEN_OFF as error:
            self._unfinished(_explained(error)[0])
            self._reason, self._exit_code, self._fix = _explained(error)[0], EXIT_ERROR, _explained(error)[1]
        else:
            self._log.write(self._remeasured)
        finally:
            site.bench.place("A")

    def _unfinished(self, why: str) -> None:
        self._log.notice(
            _("The final re-measurement was not finished: {why}").format(why=why), level="warning"
        )

    def _pairs(self, site: Site) -> e.Remeasured:
        def run(name: str, *, cold: bool = False) -> float:
            site.bench.place(name)
            role: Role = "baseline" if name == "original" else "best"
            return site.bench.run_in_place(role, None, cold=cold).ms

        with self._ledger.spend("engine"):
            for name in ("original", "A"):
                run(name, cold=True)
            original: list[float] = []
            best: list[float] = []
            for pair in range(MORE_PAIRS):
                order = ("original", "A") if pair % 2 == 0 else ("A", "original")
                for name in order:
                    (original if name == "original" else best).append(run(name))
                if pair + 1 == PAIRS:
                    centre, low, high = _log_gain(original, best)
                    if high - low <= abs(centre):
                        break
            centre, low, high = _log_gain(original, best)
        return e.Remeasured(
            base_ms=median(original),
            best_ms=median(best),
            gain_percent=(1 - exp(centre)) * 100,
            low_percent=(1 - exp(high)) * 100,
            high_percent=(1 - exp(low)) * 100,
            pairs=len(best),
            confirmed=high < 0,
        )

    def _finish(self) -> int:
        site = self._site
        final = self._remeasured
        base_ms = best_ms = gain = None
        if site is not None:
            # Without an accepted round the original is the best, however it was measured since.
            base_ms, best_ms = site.base_ms, site.incumbent.ms if self._accepted else site.base_ms
            gain = gain_percent(base_ms, best_ms)
        if final is not None:
            base_ms, best_ms, gain = final.base_ms, final.best_ms, final.gain_percent
        code = self._exit_code
        if code is None:
            code = EXIT_IMPROVED if final is not None and final.confirmed else EXIT_NOTHING
        if site is not None and self._accepted and site.settings.git.branch not in ("", site.branch):
            branch = site.settings.git.branch
            self._log.notice(
                _(
                    "The result is on the branch {branch}; the working tree and the index hold it as well."
                ).format(branch=branch),
                _("`git switch {branch}` goes there.").format(branch=branch),
            )
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._log.write(
            e.SessionFinished(
                reason=self._reason,
                exit_code=code,
                best_round=self._accepted[-1] if self._accepted else None,
                base_ms=base_ms,
                best_ms=best_ms,
                gain_percent=gain,
                confirmed=final.confirmed if final is not None else None,
                succeeded=len(self._accepted),
                failed=len(self._states) - len(self._accepted),
                seconds=time.monotonic() - self._began,
                engine_seconds=self._ledger.total("engine"),
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                fix=self._fix,
            )
        )
        return code


def _explained(error: Exception) -> tuple[str, str]:
    """Message and fix of one of `BROKEN_OFF`."""
    if isinstance(error, (Problem, NcuMissing)):
        return error.message, error.fix
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return (
            _("A file or a process cannot be used: {why}.").format(why=f"{error.strerror or error}{where}"),
            _("See that the disk is not full and that the project can be written; then start again."),
        )
    if isinstance(error, CannotKeep):
        return (
            _("A kept build cannot be put back: {why}").format(why=error),
            _("Build the program again by hand; the accepted commits stay."),
        )
    return str(error), _("Run the program by hand; the accepted commits stay.")


def _log_gain(original: list[float], best: list[float]) -> tuple[float, float, float]:
    return paired_interval([log(b) - log(o) for o, b in zip(original, best, strict=True)])


def _machine() -> str:
    import platform

    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
