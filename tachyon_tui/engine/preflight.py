"""The checks before any request to a model, each failure with its fix; what they learn becomes the `Site`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tachyon_tui.agents.base import Agent
from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import RunRecord
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.session import SessionPaths, list_sessions
from tachyon_tui.core.units import bytes_text, ms_text, percent_text
from tachyon_tui.engine.bench import Bench, RunFailed, Sample, last_lines
from tachyon_tui.engine.charge import CountsDiffer, learn_scope
from tachyon_tui.engine.control import Control
from tachyon_tui.engine.diagnosis import Diagnosis, choose_launches
from tachyon_tui.engine.judge import Judge, Rule
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.engine.rounds import accepted_before, content_hash, tick_share
from tachyon_tui.engine.site import Budget, Incumbent, Site
from tachyon_tui.profilers.base import ChildEnd, Diagnoser, Timer
from tachyon_tui.profilers.gpu import GpuMonitor
from tachyon_tui.profilers.kernel_timer import KernelTimer, RecorderUnavailable, build_recorder
from tachyon_tui.profilers.ncu import NcuDiagnoser, NcuMissing, function_name
from tachyon_tui.profilers.ncu import tool as ncu_tool
from tachyon_tui.profilers.ncu_timer import NcuTimer
from tachyon_tui.profilers.reader import read_report_apart
from tachyon_tui.profilers.report import ReportError
from tachyon_tui.profilers.roofline import floor
from tachyon_tui.profilers.stopwatch import Stopwatch
from tachyon_tui.workspace.builds import CannotKeep
from tachyon_tui.workspace.editable import EditableSet
from tachyon_tui.workspace.files import written
from tachyon_tui.workspace.git import Repository
from tachyon_tui.workspace.outputs import Outputs
from tachyon_tui.workspace.runner import ChildProblem, run_child, split_command
from tachyon_tui.workspace.source_tree import SourceTree
from tachyon_tui.workspace.tamper import Tamper
from tachyon_tui.workspace.verify import Oracle

if TYPE_CHECKING:
    from tachyon_tui.engine.start import Request

LEAST_DISK = 200 << 20
COMPILED = frozenset({".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cl"})
NOISY = 0.20


class PreflightFailed(Exception):
    """The session cannot start; the message says why and ``fix`` what to do."""

    def __init__(self, name: str, message: str, fix: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.fix = fix
        self.exit_code = exit_code


@dataclass
class Preflight:
    """Runs the checks in order and builds the `Site` as it learns."""

    request: Request
    root: Path
    paths: SessionPaths
    log: EventLog
    control: Control
    ledger: Ledger
    agent: Agent

    def run(self) -> Site:
        """All checks; raises `PreflightFailed`, `Problem` or an interruption."""
        settings, request = self.request.settings, self.request
        repo = self._repository()
        self._disk()
        timer, diagnoser = self._instruments()
        argv = self._run_argv()
        bench = Bench(
            settings, request.cwd, self.root, self.paths, argv, self.control, self.log, self.ledger, timer,
            GpuMonitor(),
        )  # fmt: skip
        verify = settings.verify
        bench.outputs = Outputs(
            self.root,
            verify.outputs,
            protected=frozenset(repo.tracked_files()),
            rtol=verify.rtol,
            atol=verify.atol,
        )
        self._model()
        self._first_build(bench)
        first = self._first_run(bench, diagnoser)
        names = self._targets(bench, first)
        editable = self._editable(repo, names, ())
        tree = self._tree(bench, repo, editable)
        tamper = Tamper(self.root, set(repo.tracked_files()) - editable.files)
        tamper.start()
        self._learn_build(bench, tree, frozenset(repo.tracked_files()))
        samples = self._calibrate(bench)
        tamper.exempt(tamper.changed())
        judge = self._judge(bench, samples)
        diagnosis = self._diagnosis(diagnoser)
        incumbent = Incumbent(tree.snapshot(), self._tip(repo), launches=samples[-1].charged.launches)
        incumbent.code = samples[-1].record.code
        for sample in samples:
            incumbent.saw(sample)
        site = Site(
            settings=settings,
            cwd=request.cwd,
            root=self.root,
            paths=self.paths,
            attended=request.attended,
            log=self.log,
            control=self.control,
            ledger=self.ledger,
            repo=repo,
            bench=bench,
            tree=tree,
            tamper=tamper,
            diagnosis=diagnosis,
            judge=judge,
            agent=self.agent,
            budget=Budget(settings.llm.max_tokens, settings.llm.max_cost),
            incumbent=incumbent,
            branch=repo.branch(),
            kernel_names=names,
            exit_code_alone=bench.oracle is None or bench.oracle.empty,
        )
        incumbent.ms = site.base_ms = self._announce(bench, judge, samples)
        site.incumbent.profiles = site.base_profiles = self._baseline_diagnosis(site, samples[-1])
        self._widen(site, repo, names)
        return site

    # -- single checks -------------------------------------------------------------------------------------

    def _ok(self, name: str, message: str, fix: str = "", status: Literal["ok", "warning"] = "ok") -> None:
        self.log.write(e.PreflightCheck(name=name, status=status, message=message, fix=fix))

    def _repository(self) -> Repository:
        repo = Repository.open(self.request.cwd)
        under_way = repo.in_progress()
        if under_way:
            raise PreflightFailed(
                "git",
                _("A {what} is in progress.").format(what=under_way),
                _("Finish or abort it: `git {what} --abort`.").format(what=under_way),
            )
        head = repo.head()
        repo.info_exclude("/.tachyon/sessions/")
        where = repo.branch() or _("detached HEAD")
        self._ok("git", _("{root} at {head} ({branch})").format(root=repo.root, head=head[:10], branch=where))
        identity = repo.fallback_identity()
        if identity:
            self._ok(
                "git",
                _("git knows no name for you; commits will carry {identity}").format(identity=identity),
                "git config --global user.name NAME; git config --global user.email ADDRESS",
                "warning",
            )
        return repo

    def _tip(self, repo: Repository) -> str:
        branch = self.request.settings.git.branch
        return repo.branch_tip(branch) if branch else repo.head()

    def _disk(self) -> None:
        free = shutil.disk_usage(self.paths.folder).free
        if free < LEAST_DISK:
            raise PreflightFailed(
                "disk",
                _("Only {free} are free in {folder}.").format(
                    free=bytes_text(free), folder=self.paths.folder
                ),
                _("Free {need}: logs, reports and kept builds go there.").format(need=bytes_text(LEAST_DISK)),
            )

    def _run_argv(self) -> list[str]:
        settings = self.request.settings
        if settings.run_cmd.strip():
            return split_command(settings.run_cmd)
        executable = self.request.executable
        beside = self.request.cwd / executable
        if os.sep not in executable and shutil.which(executable) is None and beside.exists():
            executable = f"./{executable}"
        return [executable, *self.request.exe_args]

    def _instruments(self) -> tuple[Timer, Diagnoser | None]:
        settings = self.request.settings
        if settings.profiler == "stopwatch":
            try:
                watch = Stopwatch(settings.stopwatch.pattern)
            except ValueError as error:
                raise PreflightFailed("timer", str(error), _("Mend `[stopwatch] pattern`.")) from error
            self._ok(
                "timer",
                _("a stopwatch times the program; a program can fool it"),
                _("Use the GPU's own records where there is a GPU: `--profiler gpu`."),
                "warning",
            )
            return watch, None
        diagnoser = self._ncu()
        try:
            recorder = build_recorder()
        except RecorderUnavailable as why:
            return self._ncu_timer(diagnoser is not None, why.reason, why.fix), diagnoser
        self._ok("timer", _("the kernel recorder is loaded into every run ({path})").format(path=recorder))
        return KernelTimer(recorder), diagnoser

    def _ncu(self) -> NcuDiagnoser | None:
        settings = self.request.settings.ncu
        try:
            found = ncu_tool(settings)
        except NcuMissing as missing:
            self._ok("ncu", missing.message, missing.fix, "warning")
            return None
        self._ok("ncu", f"{'.'.join(map(str, found.version)) or '?'} ({found.program})")
        return NcuDiagnoser(settings)

    def _ncu_timer(self, have_ncu: bool, reason: str, fix: str) -> Timer:
        if not have_ncu:
            raise PreflightFailed(
                "timer",
                _("Nothing can time the GPU: {why}").format(why=reason),
                f"{fix} " + _("Or time the program with `--profiler stopwatch`."),
            )
        self._ok(
            "timer",
            _("ncu times the runs, because the recorder cannot: {why}").format(why=reason),
            fix,
            "warning",
        )
        return NcuTimer(self.request.settings.ncu)

    def _model(self) -> None:
        from tachyon_tui.agents.base import AgentError

        try:
            with self.ledger.spend("model"):
                self.agent.check()
        except AgentError as error:
            raise PreflightFailed("model", error.message, error.fix) from error
        known = getattr(self.agent, "price_known", None)
        if self.request.settings.llm.max_cost is not None and known is not None and not known():
            raise PreflightFailed(
                "model",
                _("--max-cost needs a model whose price is known; this one's is not."),
                _("Use --max-tokens instead."),
            )
        self._ok("model", self.request.settings.llm.model or _("built in"))

    def _first_build(self, bench: Bench) -> None:
        if not bench.compiled:
            return
        try:
            outcome = bench.build(None, 0)
        except ChildProblem as problem:
            raise PreflightFailed("build", problem.message, problem.fix) from problem
        if not outcome.ok:
            raise PreflightFailed(
                "build",
                f"{outcome.message}\n{last_lines(outcome.tail, 15)}",
                _("The build must pass before the agent starts: run `{command}` and mend it.").format(
                    command=self.request.settings.build_cmd
                ),
            )
        self._ok("build", _("passed in {seconds:.1f} s").format(seconds=outcome.seconds))

    def _first_run(self, bench: Bench, diagnoser: Diagnoser | None) -> Sample:
        try:
            return bench.run_in_place("baseline", None, cold=True)
        except ChildProblem as problem:
            raise PreflightFailed("run", problem.message, problem.fix) from problem
        except RunFailed as failure:
            if failure.crashed or not isinstance(bench.timer, KernelTimer):
                raise self._run_failed(failure) from failure
            reason = failure.reason
        bench.timer = self._ncu_timer(
            diagnoser is not None, reason, _("See that the program ends through main or exit().")
        )
        try:
            return bench.run_in_place("baseline", None, cold=True)
        except RunFailed as failure:
            raise self._run_failed(failure) from failure

    def _run_failed(self, failure: RunFailed) -> PreflightFailed:
        return PreflightFailed(
            "run",
            failure.reason,
            _("The program must run and pass its own check before the agent starts; try it by hand."),
        )

    def _targets(self, bench: Bench, first: Sample) -> tuple[str, ...]:
        if first.record.instrument == "stopwatch":
            return ()
        text = self.request.settings.target_kernel
        names = list(dict.fromkeys(launch.key.name for launch in first.record.launches))
        chosen = tuple(name for name in names if text in name)
        if not chosen:
            ran = ", ".join(names[:20]) or _("none")
            raise PreflightFailed(
                "kernels",
                _("No kernel's name holds {text!r}; these ran: {ran}").format(text=text, ran=ran),
                _("Give -k a part of one of these names."),
            )
        self._ok("kernels", ", ".join(chosen[:5]))
        return chosen

    def _editable(self, repo: Repository, names: Sequence[str], sources: Sequence[str]) -> EditableSet:
        settings = self.request.settings
        return EditableSet.find(
            repo.root,
            repo.tracked_files(),
            kernels=[function_name(name) for name in names]
            or ([settings.target_kernel] if settings.target_kernel else []),
            source_files=sources,
            allowed=settings.edit_paths,
        )

    def _tree(self, bench: Bench, repo: Repository, editable: EditableSet) -> SourceTree:
        settings = self.request.settings
        compiled = [name for name in editable.files if Path(name).suffix in COMPILED]
        if compiled and not bench.compiled:
            raise PreflightFailed(
                "build",
                _("{file} must be compiled, and there is no build command.").format(file=compiled[0]),
                _('Give one: --build "make -j8", or `build_cmd` in .tachyon/evolve.toml.'),
            )
        dirty = set(repo.dirty_tracked())
        ours = self._not_ours(sorted(dirty & set(editable.files)))
        if ours:
            raise PreflightFailed(
                "git",
                _("These files may be edited and have uncommitted changes: {files}.").format(
                    files=", ".join(ours)
                ),
                _("Commit them first, so that nothing of yours can be lost: `git commit {files}`.").format(
                    files=" ".join(ours)
                ),
            )
        others = sorted(dirty - set(editable.files))
        if others:
            self._ok(
                "git",
                _("other uncommitted changes stay as they are: {files}").format(files=", ".join(others[:10])),
                status="warning",
            )
        self._ok("editable", ", ".join(sorted(editable.files)))
        tree = SourceTree(repo.root, editable)
        bench.tree = tree
        if settings.git.branch:
            self._ok("git", _("commits go to the branch {name}").format(name=settings.git.branch))
        return tree

    def _not_ours(self, dirty: list[str]) -> list[str]:
        """Without the files that the last session accepted and, as it was told, did not commit."""
        sessions = [s for s in list_sessions(self.root) if s.folder != self.paths.folder]
        known = accepted_before(sessions[-1].folder) if sessions else {}
        rest = []
        for name in dirty:
            path = self.root / name
            if known.get(name) != content_hash(path.read_bytes() if path.is_file() else None):
                rest.append(name)
        return rest

    def _learn_build(self, bench: Bench, tree: SourceTree, tracked: frozenset[str]) -> None:
        """Build once more with touched sources: it must rebuild, and what it writes is what a build is."""
        if not bench.compiled:
            bench.remember("original")
            bench.remember("A")
            return
        tree.touch()
        before = bench.store.scan()
        outcome = bench.build(None, 0)
        if not outcome.ok:
            raise PreflightFailed(
                "build", outcome.message, _("It passed a moment ago: see that the build is repeatable.")
            )
        bench.sources = tracked - written(before, bench.store.scan())
        rewritten = bench.rewritten(before)
        if not rewritten:
            raise PreflightFailed(
                "build",
                _("The build rewrote no file although {file} has a new modification time.").format(
                    file=next(iter(sorted(tree.editable.files)), "?")
                ),
                _("The build command must rebuild the program from the editable files; check `build_cmd`."),
            )
        bench.noise = self._idle_build(bench, rewritten)
        try:
            bench.remember("original")
            bench.remember("A")
        except CannotKeep as why:
            bench.can_keep = False
            self._ok(
                "build",
                _("builds cannot be kept ({why}): only clear gains can be accepted").format(why=why),
                status="warning",
            )
            return
        self._ok("build", _("rebuilds {count} files").format(count=len(rewritten)))

    def _idle_build(self, bench: Bench, rewritten: frozenset[str]) -> frozenset[str]:
        """What the build writes although there is nothing to do; nothing where it always builds everything."""
        before = bench.store.scan()
        outcome = bench.build(None, 0)
        idle = bench.rewritten(before) if outcome.ok else frozenset()
        return frozenset() if idle >= rewritten else idle

    def _calibrate(self, bench: Bench) -> list[Sample]:
        rule = Rule()
        samples: list[Sample] = []
        try:
            for index in range(1 + rule.calibration):
                self.control.boundary()
                samples.append(bench.sample("A", "baseline", None, cold=index == 0))
        except RunFailed as failure:
            raise PreflightFailed(
                "run",
                _("run {number} of the calibration failed: {why}").format(
                    number=len(samples) + 1, why=failure.reason
                ),
                _("The program must pass every time; a check that fails now and then decides nothing."),
            ) from failure
        if samples[-1].record.truncated and self.request.settings.judge.per == "run":
            raise PreflightFailed(
                "timer",
                _("The program launches more kernels than ncu can time in one run."),
                _('Judge the mean per launch: set `[judge] per = "launch"`.'),
            )
        verify = self.request.settings.verify
        if verify.stdout != "off":
            bench.oracle = Oracle.learn(
                [sample.stdout for sample in samples],
                mode=verify.stdout,
                ignore=verify.ignore,
                rtol=verify.rtol,
                atol=verify.atol,
            )
        self._learn_scope(bench, [sample.record for sample in samples])
        return [replace(sample, charged=bench.scope.charge(sample.record)) for sample in samples[1:]]

    def _learn_scope(self, bench: Bench, records: Sequence[RunRecord]) -> None:
        settings = self.request.settings
        if settings.profiler == "stopwatch":
            return
        try:
            bench.scope = learn_scope(records, settings.target_kernel, settings.judge.per)
        except CountsDiffer as differ:
            raise PreflightFailed(
                "run",
                _(
                    "The program launches its target kernels a different number of times in each run: {counts}."
                ).format(counts=", ".join(map(str, differ.counts))),
                _('Judge the mean per launch: set `[judge] per = "launch"`.'),
            ) from differ

    def _judge(self, bench: Bench, samples: Sequence[Sample]) -> Judge:
        settings = self.request.settings.judge
        rule = Rule(
            min_gain=settings.min_gain, alpha=settings.alpha, max_pairs=max(3, settings.max_samples - 1)
        )
        times = [replace(s, ms=s.charged.ms) for s in samples]
        judge = Judge(rule, tick_share(times[-1], times[-1].ms))
        judge.calibrate([s.log for s in times])
        return judge

    def _announce(self, bench: Bench, judge: Judge, samples: Sequence[Sample]) -> float:
        times = sorted(s.charged.ms for s in samples)
        middle = times[len(times) // 2]
        oracle = bench.oracle
        noise, visible = judge.noise * 100, judge.visible * 100
        words = [
            _(
                "noise of this program here: {noise} a run ({runs} runs). Gains below {visible} may be missed."
            ).format(noise=percent_text(noise, digits=2), runs=len(times), visible=percent_text(visible))
        ]
        if judge.visible > 3 * judge.rule.min_gain:
            words.append(
                _("To see smaller gains: lock the clocks, enlarge the problem, free the GPU, or set "
                  "`[judge] max_samples = {samples}` for gains of 5 %.").format(
                    samples=judge.samples_for_five_percent
                )
            )  # fmt: skip
        self.log.write(
            e.Calibrated(
                who="baseline",
                ms=middle,
                samples_ms=tuple(s.charged.ms for s in samples),
                noise_percent=noise,
                visible_percent=visible,
                instrument=samples[-1].record.instrument,
                kernels=samples[-1].charged.kernels,
                oracle=oracle.describe() if oracle is not None else "",
                exit_code_alone=oracle is None or oracle.empty,
                message=" ".join(words),
            )
        )
        if oracle is None or oracle.empty:
            self._ok(
                "check",
                _("nothing stable is printed: candidates are checked by the exit code alone"),
                _("Let the program print a result, or set `[verify] outputs` or `[verify] command`."),
                "warning",
            )
        if judge.visible > NOISY:
            self._ok("noise", words[0], words[1], "warning")
        return middle

    # -- diagnosis -----------------------------------------------------------------------------------------

    def _diagnosis(self, diagnoser: Diagnoser | None) -> Diagnosis:
        control, cwd = self.control, self.request.cwd

        def run(argv: Sequence[str], env: Mapping[str, str], timeout: float, output: Path) -> ChildEnd:
            result = run_child(
                argv,
                cwd=cwd,
                env=dict(env),
                timeout=control.allowance(timeout),
                stdout=output,
                check=control.check,
            )
            return ChildEnd(result.exit_code, result.timed_out, result.seconds, result.tail)

        given = self.request.settings.floor

        def with_floor(profile: KernelProfile) -> KernelProfile:
            return profile.model_copy(update={"floor": floor(profile, given.bytes, given.flops)})

        return Diagnosis(diagnoser, self.log, self.ledger, self.paths.reports, run, with_floor)

    def _baseline_diagnosis(self, site: Site, sample: Sample) -> tuple[KernelProfile, ...]:
        settings = site.settings
        if settings.report:
            path = self.root / settings.report
            if not path.exists():
                path = self.request.cwd / settings.report
            try:
                return site.diagnosis.adopt(read_report_apart(path), path)
            except ReportError as error:
                raise PreflightFailed("report", error.message, error.fix) from error
        if not site.diagnosis.available:
            return ()
        wanted = choose_launches(sample.record, site.bench.scope)
        outcome = site.diagnosis.diagnose(site.bench.run_argv, wanted, "baseline", None)
        if outcome is None:
            return ()
        if outcome.report is None:
            site.why_no_profile = outcome.message
            if outcome.status in ("permission", "driver", "unsupported_gpu", "ncu_missing"):
                site.diagnosis.give_up()
            self._ok("ncu", outcome.message, outcome.fix, "warning")
            return ()
        profiles = site.diagnosis.with_floor(outcome.report.kernels)
        first = profiles[0]
        self._ok(
            "ncu", _("profiled {name}, {ms} under ncu").format(name=first.name, ms=ms_text(first.gpu_time_ms))
        )
        return profiles

    def _widen(self, site: Site, repo: Repository, names: Sequence[str]) -> None:
        """Add tracked files that the report's line information names (device functions in headers)."""
        sources = sorted({name for profile in site.base_profiles for name in profile.source_files})
        if not sources:
            return
        wider = self._editable(repo, names, sources)
        more = sorted(set(wider.files) - set(site.tree.editable.files))
        fresh = [name for name in more if name not in repo.dirty_tracked()]
        if not fresh:
            return
        wider.files -= set(more) - set(fresh)
        site.tree = SourceTree(repo.root, wider)
        site.bench.tree = site.tree
        site.incumbent.files = site.tree.snapshot()
        site.tamper.exempt(fresh)
        self._ok("editable", _("also {files}, by the report's lines").format(files=", ".join(fresh)))
