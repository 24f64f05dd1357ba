"""The checks before any request to a model, each failure with its fix; what they learn becomes the `Site`."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tachyon_tui.agents.base import Agent, AgentError
from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import KernelProfile, Report
from tachyon_tui.core.redact import redact
from tachyon_tui.core.session import SessionPaths, list_sessions
from tachyon_tui.core.units import bytes_text
from tachyon_tui.engine.baseline import (
    announce,
    calibrate,
    diagnose_baseline,
    first_judge,
    new_diagnosis,
    new_oracle,
)
from tachyon_tui.engine.bench import Bench, RunFailed, Sample, last_lines
from tachyon_tui.engine.broken_off import find_broken_off
from tachyon_tui.engine.checks import Checks, PreflightFailed
from tachyon_tui.engine.control import Control
from tachyon_tui.engine.endpoint import unreachable
from tachyon_tui.engine.instruments import (
    check_sanitizer,
    choose_instruments,
    stopwatch_advice,
    time_with_ncu,
)
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.engine.rounds import accepted_before, accepted_copies, content_hash
from tachyon_tui.engine.site import Budget, Incumbent, Site
from tachyon_tui.profilers.base import Finished, Timer
from tachyon_tui.profilers.gpu import GpuMonitor
from tachyon_tui.profilers.kernel_timer import KernelTimer
from tachyon_tui.profilers.ncu import function_name
from tachyon_tui.profilers.ncu_timer import NcuTimer
from tachyon_tui.profilers.reader import read_report_apart
from tachyon_tui.profilers.report import ReportError, local_install
from tachyon_tui.workspace.builds import CannotKeep
from tachyon_tui.workspace.editable import EditableSet
from tachyon_tui.workspace.files import written
from tachyon_tui.workspace.git import Repository
from tachyon_tui.workspace.outputs import Outputs
from tachyon_tui.workspace.runner import ChildProblem, split_command
from tachyon_tui.workspace.source_tree import SourceTree
from tachyon_tui.workspace.tamper import Tamper

if TYPE_CHECKING:
    from tachyon_tui.engine.start import Request

LEAST_DISK = 200 << 20
COMPILED = frozenset({".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cl"})


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

    @cached_property
    def _checks(self) -> Checks:
        return Checks(self.log)

    def run(self) -> Site:
        """All checks; raises `PreflightFailed`, `Problem` or an interruption."""
        settings, request = self.request.settings, self.request
        repo = self._repository()
        tip = self._tip(repo)
        self._disk()
        new_oracle(settings.verify, [])
        check_sanitizer(settings)
        report = self._report()
        timer, diagnoser = choose_instruments(settings, self._checks)
        bench = self._bench(repo, timer)
        self._model()
        self._first_build(bench)
        first = self._first_run(bench, have_ncu=diagnoser is not None)
        names = self._targets(first)
        editable = self._editable(repo, names, ())
        tree = self._tree(bench, repo, editable)
        tamper = Tamper(self.root, set(repo.tracked_files()) - editable.files)
        tamper.start()
        self._learn_build(bench, tree, frozenset(repo.tracked_files()))
        samples = calibrate(bench, self.control, settings)
        tamper.exempt(tamper.changed())
        judge = first_judge(settings.judge, samples)
        incumbent = Incumbent(tree.snapshot(), tip, launches=samples[-1].charged.launches)
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
            diagnosis=new_diagnosis(
                diagnoser, settings, request.cwd, self.paths, self.control, self.log, self.ledger
            ),
            judge=judge,
            agent=self.agent,
            budget=Budget(settings.llm.max_tokens, settings.llm.max_cost),
            incumbent=incumbent,
            branch=repo.branch(),
            start_head=repo.head(),
            kernel_names=names,
            exit_code_alone=bench.oracle is None or bench.oracle.empty,
        )
        incumbent.ms = site.base_ms = announce(bench, judge, samples, self.log, self._checks)
        site.incumbent.profiles = site.base_profiles = self._profiles(site, report, samples[-1])
        self._widen(site, repo, names)
        return site

    def _repository(self) -> Repository:
        repo = Repository.open(self.request.cwd)
        repo.info_exclude("/.tachyon/sessions/")
        under_way = repo.in_progress()
        if under_way:
            end = "git bisect reset" if under_way == "bisect" else f"git {under_way} --abort"
            raise PreflightFailed(
                "git",
                _("A {what} is in progress.").format(what=under_way),
                _("Finish it, or give it up with `{command}`; then start again.").format(command=end),
            )
        head = repo.head()
        where = repo.branch() or _("detached HEAD")
        self._checks.ok(
            "git", _("{root} at {head} ({branch})").format(root=repo.root, head=head[:10], branch=where)
        )
        identity = repo.fallback_identity()
        if identity:
            self._checks.warn(
                "git",
                _("git knows no name for you; commits will carry {identity}").format(identity=identity),
                "git config --global user.name NAME; git config --global user.email ADDRESS",
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
        if os.sep not in executable and shutil.which(executable) is None:
            executable = f"./{executable}"
        return [executable, *self.request.exe_args]

    def _report(self) -> tuple[Report, Path] | None:
        """The report that was given as the baseline's diagnosis, read."""
        given = self.request.settings.report
        if not given:
            return None
        path = self.root / given
        if not path.exists():
            path = self.request.cwd / given
        try:
            return read_report_apart(path, local_install()), path
        except ReportError as error:
            raise PreflightFailed("report", error.message, error.fix) from error

    def _bench(self, repo: Repository, timer: Timer) -> Bench:
        settings = self.request.settings
        bench = Bench(
            settings, self.request.cwd, self.root, self.paths, self._run_argv(), self.control, self.log,
            self.ledger, timer, GpuMonitor(),
        )  # fmt: skip
        verify = settings.verify
        bench.outputs = Outputs(
            self.root,
            verify.outputs,
            protected=frozenset(repo.tracked_files()),
            rtol=verify.rtol,
            atol=verify.atol,
        )
        return bench

    def _model(self) -> None:
        try:
            with self.ledger.spend("model"):
                self.agent.check()
        except AgentError as error:
            raise PreflightFailed("model", error.message, error.fix) from error
        base = self.request.settings.llm.api_base
        silent = unreachable(base) if base else ""
        if silent:
            raise PreflightFailed(
                "model",
                _("Nothing answers at {url}: {why}.").format(url=redact(base), why=silent),
                _("Start the server there, or correct --api-base."),
            )
        known = getattr(self.agent, "price_known", None)
        if self.request.settings.llm.max_cost is not None and known is not None and not known():
            raise PreflightFailed(
                "model",
                _("--max-cost needs a model whose price is known; this one's is not."),
                _("Use --max-tokens instead."),
            )
        self._checks.ok("model", self.request.settings.llm.model or _("built in"))

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
        self._checks.ok("build", _("passed in {seconds:.1f} s").format(seconds=outcome.seconds))

    def _first_run(self, bench: Bench, *, have_ncu: bool) -> Sample:
        """One run, to see that the program runs and can be timed; ncu takes over where the recorder cannot."""
        try:
            return self._try_run(bench)
        except RunFailed as failure:
            unrecorded = self._timer_says(bench) if isinstance(bench.timer, KernelTimer) else ""
            if failure.crashed or not unrecorded:
                raise self._run_failed(bench, failure) from failure
        bench.timer = time_with_ncu(
            self.request.settings,
            self._checks,
            unrecorded,
            _("See that the program ends through main or exit()."),
            have_ncu=have_ncu,
        )
        try:
            return self._try_run(bench)
        except RunFailed as failure:
            raise self._run_failed(bench, failure) from failure

    def _try_run(self, bench: Bench) -> Sample:
        try:
            return bench.run_in_place("baseline", None, cold=True)
        except ChildProblem as problem:
            fix = problem.fix
            if not bench.compiled:
                fix = _('Build it, or give the command that does: --build "make -j8". ') + fix
            raise PreflightFailed("run", problem.message, fix) from problem

    def _timer_says(self, bench: Bench) -> str:
        """Why the timer itself could not time the last run; empty when it could."""
        scratch = self.paths.scratch / "run"
        return bench.timer.read(scratch, Finished(1, 0.0, scratch / "stdout", scratch / "ncu.log")).problem

    def _run_failed(self, bench: Bench, failure: RunFailed) -> PreflightFailed:
        run = shlex.join(bench.run_argv)
        if isinstance(bench.timer, NcuTimer):
            said = self._timer_says(bench)
            if said:
                return PreflightFailed("run", said, stopwatch_advice())
        if failure.crashed:
            fix = _(
                "`{command}` must end by itself with exit code 0: try it by hand in {folder}. If it only needs "
                "longer than {seconds:.0f} s, raise `[run] timeout`; if it prints too much, let it print less."
            ).format(command=run, folder=self.request.cwd, seconds=self.request.settings.run.timeout)
        elif self.request.settings.verify.command:
            fix = _("Run `{command}` and then `{check}` by hand: both must exit with code 0.").format(
                command=run, check=self.request.settings.verify.command
            )
        else:
            fix = _("Run `{command}` by hand and look at what it prints.").format(command=run)
        return PreflightFailed("run", failure.reason, fix)

    def _targets(self, first: Sample) -> tuple[str, ...]:
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
        self._checks.ok("kernels", ", ".join(chosen[:5]))
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
            broken = find_broken_off(self._earlier())
            fix = _("Commit them first, so that nothing of yours can be lost: `git commit {files}`.")
            if broken is not None and accepted_copies(broken.paths.folder).is_dir():
                fix = _(
                    "An earlier session was broken off and may have left its candidate there: look with `git diff`; "
                    "`cp -r {copies}/. {root}` brings back what it accepted, "
                    "`git commit {files}` keeps what is there."
                )
            elif broken is not None:
                fix = _(
                    "An earlier session was broken off and may have left its candidate there: look with `git diff`; "
                    "`git restore --source=HEAD --staged --worktree {files}` brings the accepted state back, "
                    "`git commit {files}` keeps what is there."
                )
            raise PreflightFailed(
                "git",
                _("These files may be edited and have uncommitted changes: {files}.").format(
                    files=", ".join(ours)
                ),
                fix.format(
                    files=shlex.join(ours),
                    root=shlex.quote(str(self.root)),
                    copies=shlex.quote(str(accepted_copies(broken.paths.folder))) if broken else "",
                ),
            )
        self._left_over(repo)
        others = sorted(dirty - set(editable.files))
        if others:
            self._checks.warn(
                "git",
                _("other uncommitted changes stay as they are: {files}").format(files=", ".join(others[:10])),
            )
        self._checks.ok("editable", ", ".join(sorted(editable.files)))
        tree = SourceTree(repo.root, editable)
        bench.tree = tree
        if settings.git.branch:
            self._checks.ok("git", _("commits go to the branch {name}").format(name=settings.git.branch))
        return tree

    def _not_ours(self, dirty: list[str]) -> list[str]:
        """Without the files that the last session accepted and, as it was told, did not commit."""
        notes = (accepted_before(session.folder) for session in reversed(self._earlier()))
        known = next((note for note in notes if note), {})
        rest = []
        for name in dirty:
            path = self.root / name
            if known.get(name) != content_hash(path.read_bytes() if path.is_file() else None):
                rest.append(name)
        return rest

    def _earlier(self) -> list[SessionPaths]:
        return [s for s in list_sessions(self.root) if s.folder != self.paths.folder]

    def _left_over(self, repo: Repository) -> None:
        """New files of a candidate that a broken-off session left: a build might pick them up."""
        broken = find_broken_off(self._earlier())
        made = broken.new_files if broken is not None else ()
        there = [name for name in made if name not in repo.tracked_files() and (self.root / name).is_file()]
        if there:
            raise PreflightFailed(
                "git",
                _("An earlier session was broken off and left new files of its candidate: {files}.").format(
                    files=", ".join(there)
                ),
                _("Remove them with `rm {files}`, or keep them with `git add {files}` and a commit.").format(
                    files=shlex.join(there)
                ),
            )

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
                "build",
                f"{outcome.message}\n{last_lines(outcome.tail, 15)}",
                _("It passed a moment ago: see that `{command}` passes twice in a row.").format(
                    command=self.request.settings.build_cmd
                ),
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
            self._checks.warn(
                "build", _("builds cannot be kept ({why}): only clear gains can be accepted").format(why=why)
            )
            return
        self._checks.ok("build", _("rebuilds {count} files").format(count=len(rewritten)))

    def _idle_build(self, bench: Bench, rewritten: frozenset[str]) -> frozenset[str]:
        """What the build writes although there is nothing to do; nothing where it always builds everything."""
        before = bench.store.scan()
        outcome = bench.build(None, 0)
        idle = bench.rewritten(before) if outcome.ok else frozenset()
        return frozenset() if idle >= rewritten else idle

    # -- diagnosis -----------------------------------------------------------------------------------------

    def _profiles(
        self, site: Site, report: tuple[Report, Path] | None, sample: Sample
    ) -> tuple[KernelProfile, ...]:
        if report is not None:
            return site.diagnosis.adopt(*report)
        return diagnose_baseline(site, sample, self._checks)

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
        self._checks.ok("editable", _("also {files}, by the report's lines").format(files=", ".join(fresh)))
