"""Builds and timed, verified runs of incumbent and candidate: every sample is a run whose result was checked."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import RunRecord
from tachyon_tui.core.regular import open_regular
from tachyon_tui.core.session import SessionPaths
from tachyon_tui.core.settings import Settings
from tachyon_tui.engine.charge import Charged, Scope
from tachyon_tui.engine.control import Control
from tachyon_tui.engine.judge import Who
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.profilers.base import Finished, Timer
from tachyon_tui.profilers.gpu import GpuMonitor, GpuState
from tachyon_tui.workspace.builds import BuildStore, KeptBuild
from tachyon_tui.workspace.files import Scan, empty_folder, removed, written
from tachyon_tui.workspace.outputs import Outputs
from tachyon_tui.workspace.problems import ForeignChange, Problem
from tachyon_tui.workspace.runner import ChildProblem, ChildResult, cap_log, run_child, split_command
from tachyon_tui.workspace.sanitizer import parse_sanitizer, sanitizer_command
from tachyon_tui.workspace.source_tree import Snapshot, SourceTree
from tachyon_tui.workspace.verify import Oracle

LOG_LIMIT = 4 << 20
STDOUT_LIMIT = 4 << 20
"""Bytes of the program's output that are checked."""
TAIL_LINES = 30
REPEATS = 2
FRESH_SECONDS = 0.25
"""A look at the GPU is as good as a new one for so long; what comes and goes in between is missed anyway."""
SANITIZER_SLOWDOWN = 10
"""How much longer than a plain run a run under compute-sanitizer may take."""
Role = Literal["baseline", "best", "candidate"]


class RunFailed(Exception):
    """A run that is no evidence: crash, timeout, failed check or no record."""

    def __init__(self, reason: str, *, crashed: bool, mismatch: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.crashed = crashed
        self.mismatch = mismatch
        """True when the output differed from what the oracle learned."""


@dataclass(frozen=True)
class Sample:
    """One verified run."""

    ms: float
    charged: Charged
    record: RunRecord
    seconds: float
    stdout: str
    marks: tuple[str, ...] = ()

    @property
    def log(self) -> float:
        """Natural logarithm of the target time, as the judge wants it."""
        return math.log(self.ms)


@dataclass(frozen=True)
class BuildOutcome:
    """One build."""

    ok: bool
    message: str
    tail: str
    seconds: float


class Bench:
    """Runs the user's commands for one session."""

    def __init__(
        self,
        settings: Settings,
        cwd: Path,
        root: Path,
        paths: SessionPaths,
        run_argv: Sequence[str],
        control: Control,
        log: EventLog,
        ledger: Ledger,
        timer: Timer,
        gpu: GpuMonitor,
    ) -> None:
        self.settings = settings
        self.run_argv = tuple(run_argv)
        self.build_argv = tuple(split_command(settings.build_cmd)) if settings.build_cmd.strip() else ()
        self.timer = timer
        self.scope = Scope(settings.target_kernel, settings.judge.per, learned=False)
        self.oracle: Oracle | None = None
        self.outputs = Outputs(root, ())
        """What else is compared; set once it is known which files must not be deleted."""
        self.store = BuildStore(root, paths.builds)
        self.can_keep = True
        self.incomplete = False
        """A build overwrote files of the incumbent's build that were not kept: it must be built again."""
        self.sources: frozenset[str] = frozenset()
        """Tracked files that no build writes: never artefacts."""
        self.noise: frozenset[str] = frozenset()
        """What a build writes that has nothing to do."""
        self._cwd = cwd
        self._paths = paths
        self._control = control
        self._log = log
        self._ledger = ledger
        self._gpu = gpu
        self.tree: SourceTree | None = None
        """The editable files; set once they are known. A script has no other build."""
        self._kept: dict[str, KeptBuild] = {}
        self._sources: dict[str, Snapshot] = {}
        self._in_place = "A"
        self._last_stdout = ""
        self._quiet_gpu: tuple[GpuState | None, float] = (None, 0.0)
        """The GPU at the end of the last run, unless that was disturbed, and when that was."""
        self._logs = 0
        self.program_seconds = 0.0
        """Wall time spent in the program since this was last set to 0."""
        self.runs = 0
        """Runs since this was last set to 0."""

    # -- builds --------------------------------------------------------------------------------------------

    @property
    def compiled(self) -> bool:
        """False for scripts: there is no build command."""
        return bool(self.build_argv)

    def build(self, round_number: int | None, attempt: int) -> BuildOutcome:
        """Run the build command; the log is kept, capped."""
        self._logs += 1
        label = "preflight" if round_number is None else f"round-{round_number:03d}"
        log = self._paths.logs / f"{self._logs:05d}-{label}-build.log"
        self._log.progress("build", "", None, round_number)
        with self._ledger.spend("build"):
            result = self._child(
                self.build_argv,
                self.settings.build.timeout,
                log,
                lambda text: self._log.progress("build", _last_line(text), None, round_number),
            )
        self.store.refresh()
        message = "" if result.ok else _("build failed: {how}").format(how=result.how())
        self._log.write(
            e.BuildFinished(
                round=round_number,
                attempt=attempt,
                ok=result.ok,
                exit_code=result.exit_code,
                seconds=result.seconds,
                message=message,
                log=f"logs/{log.name}",
                tail=last_lines(result.tail, TAIL_LINES),
            )
        )
        return BuildOutcome(result.ok, message, result.tail, result.seconds)

    def _child(
        self,
        argv: Sequence[str],
        timeout: float,
        stdout: Path,
        on_output: Callable[[str], None] | None = None,
        *,
        stderr: Path | None = None,
        env: dict[str, str | None] | None = None,
    ) -> ChildResult:
        result = run_child(
            argv,
            cwd=self._cwd,
            env={**model_keys(), **(env or {})},
            timeout=self._control.allowance(timeout),
            stdout=stdout,
            stderr=stderr,
            check=self._control.check,
            on_output=on_output,
        )
        cap_log(stdout, LOG_LIMIT)
        return result

    def remember(self, name: str) -> None:
        """Keep what is in place under a name: ``original``, ``A`` (incumbent) or ``B`` (candidate)."""
        if not self.compiled:
            self._sources[name] = self._tree().snapshot()
        elif self.can_keep:
            self._kept[name] = self.store.keep(name)

    def _tree(self) -> SourceTree:
        assert self.tree is not None
        return self.tree

    def prepare_promotion(self) -> None:
        """Put the candidate's build in place and keep it, so that `promote` cannot fail. Raises `CannotKeep`."""
        if not self.has("B"):
            self.remember("B")
        self.place("B")

    def promote(self) -> None:
        """The candidate's build becomes the incumbent's; it lies in place (see `prepare_promotion`)."""
        if "B" in self._kept:
            self._kept["A"] = self.store.rename(self._kept.pop("B"), "A")
        if "B" in self._sources:
            self._sources["A"] = self._sources.pop("B")
        self._in_place = "A"

    def candidate_built(self) -> None:
        """What lies in the tree now is the candidate's build."""
        self._forget("B")
        self._in_place = "B"

    def incumbent_rebuilt(self, *, anew: bool = False) -> None:
        """What lies in the tree now was built from the incumbent's source; ``anew`` makes it the kept one."""
        self._forget("B")
        self._in_place = "rebuilt"
        if self.incomplete or anew:
            self.incomplete = False
            self.remember("A")
            self._in_place = "A"

    def _forget(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self.store.drop(kept)
        self._sources.pop(name, None)

    def forget_original(self) -> None:
        """The original's build is not to be had any more: there will be no final re-measurement."""
        self._forget("original")

    def place(self, name: str) -> None:
        """Put a kept build into the tree (of a script: its source)."""
        if self._in_place == name or not self.can_keep:
            return
        if self._in_place == "B" and not self.has("B"):
            self.remember("B")
        if self.compiled:
            self.store.place(self._kept[name])
        else:
            self._tree().restore(self._sources[name])
        self._in_place = name

    def has(self, name: str) -> bool:
        """Whether a build is kept under this name."""
        return name in self._kept or name in self._sources

    def same_files(self) -> bool:
        """Whether the candidate's build is byte for byte the incumbent's."""
        if not self.compiled or not self.can_keep:
            return False
        if not self.has("B"):
            self.remember("B")
        a, b = self._kept["A"].files, self._kept["B"].files
        return a.keys() == b.keys() and all(a[path].digest == b[path].digest for path in a)

    def rewritten(self, before: Scan) -> frozenset[str]:
        """Files that the build since ``before`` wrote or removed; they count as artefacts from now on."""
        after = self.store.scan()
        made = (written(before, after) | removed(before, after)) - self.sources
        first = not self.has("A")
        if self.store.learn(before, after, self.sources, first=first).lost and not first:
            self.incomplete = True
        return frozenset(made)

    def unlearn(self) -> None:
        """Free what the incumbent's own last output contradicted."""
        if self.oracle is not None:
            self.oracle.contradict(self._last_stdout)

    # -- runs ----------------------------------------------------------------------------------------------

    def sample(self, who: Who, role: Role, round_number: int | None, *, cold: bool = False) -> Sample:
        """One timed and verified run of the incumbent (A) or the candidate (B), whichever build it takes.

        A run marked by its circumstances is repeated, at most twice. Raises `RunFailed`.
        """
        self.place(who)
        for attempt in range(REPEATS + 1):
            sample = self.run_in_place(role, round_number, cold=cold)
            if not sample.marks or attempt == REPEATS:
                break
        return sample

    def run_in_place(self, role: Role, round_number: int | None, *, cold: bool = False) -> Sample:
        """One timed and verified run of what lies in the tree.

        Raises `RunFailed`; for the baseline also `ChildProblem` and `Problem`, which a candidate could bring about.
        """
        try:
            result, record, stdout, marks = self._run(round_number)
        except Problem as refused:
            if role != "candidate" or isinstance(refused, ForeignChange):
                raise
            raise RunFailed(refused.message, crashed=True) from refused
        charged = self.scope.charge(record)
        problem = self._problem(result, record, charged, stdout, role)
        ms = charged.ms if charged.ms > 0 and not record.problem else None
        self._log.write(
            e.RunFinished(
                round=round_number,
                who=role,
                cold=cold,
                ok=problem is None,
                exit_code=result.exit_code,
                seconds=result.seconds,
                ms=ms,
                sum_ms=charged.sum_ms or None,
                message=problem.reason if problem else "",
                marks=marks,
            )
        )
        if problem is not None:
            raise problem
        return Sample(charged.ms, charged, record, result.seconds, stdout, marks)

    def _run(self, round_number: int | None) -> tuple[ChildResult, RunRecord, str, tuple[str, ...]]:
        scratch = self._paths.scratch / "run"
        empty_folder(scratch)
        timed = self.timer.prepare(self.run_argv, scratch)
        self.outputs.prepare()
        before = self._look_before()
        self._log.progress("run", "", None, round_number)
        out, err = scratch / "stdout", scratch / "stderr"
        with self._ledger.spend("run"):
            result = self._child(
                timed.argv,
                self.settings.run.timeout,
                out,
                stderr=err,
                env={**({} if self.compiled else no_bytecode(scratch)), **timed.env},
            )
        self.program_seconds += result.seconds
        self.runs += 1
        after = self._gpu.sample()
        marks = self._gpu.marks(before, after)
        self._quiet_gpu = (None if marks else after, time.monotonic())
        if after is not None:
            self._log.write(
                e.GpuSampled(
                    name=after.name,
                    sm_clock_mhz=after.sm_clock_mhz,
                    temperature_c=after.temperature_c,
                    power_w=after.power_w,
                    throttle=after.reasons,
                    foreign_processes=len(after.processes),
                )
            )
        try:
            with open_regular(out) as file:
                stdout = file.read(STDOUT_LIMIT).decode("utf-8", "replace")
        except OSError as error:
            raise RunFailed(
                _("the program removed or replaced its own output ({why}): no evidence").format(
                    why=error.strerror or error
                ),
                crashed=True,
            ) from error
        finished = Finished(result.exit_code, result.seconds, out, scratch / "ncu.log")
        record = self.timer.read(scratch, finished)
        self._last_stdout = stdout
        return result, record, stdout, marks

    def _look_before(self) -> GpuState | None:
        """The GPU before a run; right after an undisturbed run its last look is this one's first."""
        state, seen = self._quiet_gpu
        return state if state and time.monotonic() - seen < FRESH_SECONDS else self._gpu.sample()

    def _problem(
        self, result: ChildResult, record: RunRecord, charged: Charged, stdout: str, role: Role
    ) -> RunFailed | None:
        if not result.ok:
            said = last_lines(self._errors() or stdout[-4000:], 4)
            reason = _("the program failed: {how}").format(how=result.how())
            return RunFailed(f"{reason}\n{said}".strip(), crashed=True)
        if record.problem:
            return RunFailed(record.problem, crashed=False)
        if charged.targets == 0 and role == "candidate" and not self._any_charged(charged):
            return RunFailed(_("no target kernel was launched: no evidence"), crashed=False)
        if charged.ms <= 0:
            return RunFailed(_("nothing was timed: no evidence"), crashed=False)
        if self.oracle is not None:
            mismatches = self.oracle.check(stdout)
            if mismatches:
                return RunFailed(
                    _("the output differs: {what}").format(what="; ".join(str(m) for m in mismatches[:3])),
                    crashed=False,
                    mismatch=True,
                )
        if role == "candidate":
            wrong = self.outputs.check()
            if wrong:
                return RunFailed(
                    _("an output file differs: {what}").format(what="; ".join(map(str, wrong[:3]))),
                    crashed=False,
                )
        else:
            varying = self.outputs.record()
            if varying:
                self._log.notice(
                    _("{files} vary from run to run by themselves and are no longer compared").format(
                        files=", ".join(varying)
                    ),
                    level="warning",
                )
        return self._verify_command()

    def _any_charged(self, charged: Charged) -> bool:
        return any(kernel.target for kernel in charged.kernels)

    def _errors(self) -> str:
        path = self._paths.scratch / "run" / "stderr"
        try:
            with open_regular(path) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _verify_command(self) -> RunFailed | None:
        command = self.settings.verify.command
        if not command.strip():
            return None
        log = self._paths.scratch / "verify.log"
        with self._ledger.spend("check"):
            result = self._child(split_command(command), self.settings.run.timeout, log)
        if result.ok:
            return None
        said = last_lines(result.tail, 4)
        reason = _("the verify command failed: {how}").format(how=result.how())
        return RunFailed(f"{reason}\n{said}".strip(), crashed=False)

    def sanitize(self, round_number: int | None) -> str:
        """Run the configured compute-sanitizer tools over what lies in the tree; what they found, or empty.

        A sanitizer that cannot be started is a finding too: a check that was asked for is never skipped silently.
        """
        for tool in self.settings.verify.sanitizer_tools:
            log = self._paths.logs / f"sanitizer-{tool}.log"
            log.unlink(missing_ok=True)
            self._log.progress("check", tool, None, round_number)
            command = sanitizer_command(tool, self.run_argv, log)
            try:
                with self._ledger.spend("check"):
                    result = self._child(
                        command, self.settings.run.timeout * SANITIZER_SLOWDOWN, log.with_suffix(".out")
                    )
            except ChildProblem as problem:
                return f"{problem.message} {problem.fix}"
            findings = parse_sanitizer(log.read_text("utf-8", "replace") if log.is_file() else "")
            if findings.errors or not findings.complete or not result.ok:
                what = "; ".join(map(str, findings.findings[:3])) or findings.message or result.how()
                return _("compute-sanitizer {tool}: {what}").format(tool=tool, what=what)
        return ""


def model_keys() -> dict[str, str | None]:
    """The providers' keys, to be taken out of the environment of what the model wrote or may print."""
    return {name: None for name in os.environ if name.upper().endswith(("_API_KEY", "_API_TOKEN"))}


def no_bytecode(scratch: Path) -> dict[str, str | None]:
    """Python tells cached bytecode by size and whole second of the source: a swapped script would run as before."""
    return {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(scratch / "pycache")}


def last_lines(text: str, count: int) -> str:
    """The last ``count`` lines of a text."""
    return "\n".join(text.rstrip().splitlines()[-count:])


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return lines[-1] if lines else ""
