"""The session from its first event to its last: preflight, rounds, stop rules, final re-measurement."""

from __future__ import annotations

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
from tachyon_tui.core.session import CommandReader, EngineLock, Journal, SessionPaths
from tachyon_tui.core.states import IterationState
from tachyon_tui.core.units import gain_percent
from tachyon_tui.engine.bench import Role, RunFailed
from tachyon_tui.engine.control import Control, Interrupted
from tachyon_tui.engine.diagnosis import floor_ms_per_run
from tachyon_tui.engine.iteration import IncumbentBroken, run_incumbent
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.engine.preflight import Preflight, PreflightFailed
from tachyon_tui.engine.reverting import revert_round
from tachyon_tui.engine.rounds import RoundResult, play_round, roll_back
from tachyon_tui.engine.site import Site
from tachyon_tui.engine.stopping import RoundRecord, at_floor, converged
from tachyon_tui.engine.student import paired_interval
from tachyon_tui.workspace.git import HeadMoved
from tachyon_tui.workspace.problems import Problem
from tachyon_tui.workspace.runner import become_subreaper

if TYPE_CHECKING:
    from tachyon_tui.engine.start import Request

EXIT_IMPROVED, EXIT_ERROR, EXIT_USAGE, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
PAIRS, MORE_PAIRS = 5, 10
FINAL_RUNS = 2 + 2 * PAIRS


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
        """Play the session; returns the exit code. To be called in the main thread, for the signals' sake."""
        become_subreaper()
        try:
            with self._signals():
                self._start()
                try:
                    self._play()
                except PreflightFailed as failed:
                    self._log.write(
                        e.PreflightCheck(
                            name=failed.name, status="failed", message=failed.message, fix=failed.fix
                        )
                    )
                    self._end(failed.message, failed.exit_code, failed.fix)
                except Interrupted as stop:
                    self._end(stop.reason, stop.exit_code)
                except Problem as problem:
                    code = EXIT_ERROR if self._site else EXIT_USAGE
                    self._end(problem.message, code, problem.fix)
                except IncumbentBroken as broken:
                    self._end(
                        str(broken), EXIT_ERROR, _("Run the program by hand; the accepted commits stay.")
                    )
                return self._finish()
        finally:
            self._journal.close()
            shutil.rmtree(self._paths.scratch, ignore_errors=True)
            for lock in self._locks:
                lock.release()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def on_signal(number: int, _frame: FrameType | None) -> None:
            self._control.signal(signal.Signals(number).name)

        wanted = (signal.SIGINT, signal.SIGTERM)
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
        number = 0
        last = site.settings.max_iterations
        while number < last:
            reason = self._stop_reason(site)
            if reason:
                self._end(reason)
                break
            self._between_rounds(site)
            if self._control.stop_after_round:
                self._end(_("stopped by the user after a round"))
                break
            result = self._round(site, number)
            number += 1
            if result.failure is not None and isinstance(result.failure, AgentError):
                last += 1
            if self._reason:
                break
        else:
            self._end(_("the limit of {count} rounds is reached").format(count=site.settings.max_iterations))
        if self._exit_code is None and self._accepted and site.bench.has("original"):
            self._remeasure(site)

    def _between_rounds(self, site: Site) -> None:
        if self._request.interactive and self._states:
            self._control.pause(_("between rounds"))
        self._reserve(site)
        with self._ledger.spend("person"):
            self._control.boundary()
        if self._control.revert is not None:
            asked, self._control.revert = self._control.revert, None
            gone = self._accepted_from(asked.round) or ()
            revert_round(site, gone, self._accepted)
            self._accepted = [number for number in self._accepted if number not in gone]
        if site.verify_first:
            site.verify_first = False
            with self._ledger.spend("engine"):
                run_incumbent(site, None)

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
        elif not site.settings.git.auto_rollback:
            self._end(
                _("round {number} was rejected and is left in place (auto_rollback = false)").format(
                    number=number
                ),
                EXIT_IMPROVED if self._accepted else EXIT_NOTHING,
            )
        if result.stop is not None:
            self._end(result.stop.reason, result.stop.exit_code)
        if isinstance(result.failure, IncumbentBroken):
            self._end(str(result.failure), EXIT_ERROR)
        if isinstance(result.failure, AgentError | Problem):
            if site.attended:
                self._ask_for_help(site, result.failure)
            else:
                self._end(result.failure.message, EXIT_ERROR, result.failure.fix)
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
        except (Interrupted, RunFailed) as stop:
            self._log.notice(
                _("The final re-measurement was not finished: {why}").format(why=stop), level="warning"
            )
            return
        finally:
            with self._control.shielded():
                site.bench.place("A")
        self._log.write(self._remeasured)

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
            base_ms, best_ms = site.base_ms, site.incumbent.ms
            gain = gain_percent(base_ms, best_ms)
        if final is not None:
            base_ms, best_ms, gain = final.base_ms, final.best_ms, final.gain_percent
        code = self._exit_code
        if code is None:
            code = EXIT_IMPROVED if final is not None and final.confirmed else EXIT_NOTHING
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


def _log_gain(original: list[float], best: list[float]) -> tuple[float, float, float]:
    return paired_interval([log(b) - log(o) for o, b in zip(original, best, strict=True)])


def _machine() -> str:
    import platform

    return f"{platform.system()} {platform.machine()}"
