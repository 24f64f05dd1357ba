"""One round as the state machine: what the agent's tools do, and how the round ends."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from statistics import mean, median

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.states import IterationState, check_transition
from tachyon_tui.core.units import ms_text
from tachyon_tui.engine.bench import Role, RunFailed, Sample, last_lines
from tachyon_tui.engine.diagnosis import choose_launches
from tachyon_tui.engine.judge import Outcome, Round, Who
from tachyon_tui.engine.site import Site
from tachyon_tui.engine.verdict import Ruling, less_work_text, rule
from tachyon_tui.workspace.builds import CannotKeep
from tachyon_tui.workspace.host_code import holds_main, touches_host
from tachyon_tui.workspace.source_tree import FileState, Snapshot

S = IterationState
VERDICT_SHARE = 10
"""A verdict spends at most this fraction (one tenth) of the time left."""


class RoundOver(Exception):
    """The round ends here, inside a step; the reason is one sentence for the person."""

    def __init__(self, state: IterationState, reason: str, kind: str = "") -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.kind = kind


class IncumbentBroken(Exception):
    """The accepted version itself fails; nothing can be judged against it."""


class Iteration:
    """The work of one round. Steps raise `RoundOver`; interruptions pass through."""

    def __init__(self, site: Site, number: int) -> None:
        self.site = site
        self.number = number
        self.state = S.PENDING
        self.builds = 0
        self.built = False
        """The candidate's latest edits have a passed build."""
        self.cold: Sample | None = None
        self.ruling: Ruling | None = None
        self.profiles: tuple[KernelProfile, ...] = ()
        self.runs = 0
        self.touches_host = ""
        self.diff = ""
        self.no_effect = False
        self._unbuilt = False
        """There are edits that no build has seen."""
        self._edited_since_build = False
        """There are edits that no passed build has seen."""
        self._judging: Round | None = None
        self._wanted: Who = "B"
        self._incumbent_before: list[Sample] = []
        self._samples: dict[Who, list[Sample]] = {"A": [], "B": []}
        self._verdict_seconds = 0.0
        self._step_begun = 0.0
        self._candidate_files: Snapshot = site.incumbent.files

    # -- states --------------------------------------------------------------------------------------------

    def move(self, after: IterationState, reason: str = "", *, interrupted: bool = False) -> None:
        """Change the state, or raise when the table does not allow it."""
        check_transition(self.state, after, interrupted=interrupted)
        before, self.state = self.state, after
        self.site.log.write(e.StateChanged(round=self.number, before=before, after=after, reason=reason))

    # -- the steps -----------------------------------------------------------------------------------------

    def edit(self, path: str, old: str, new: str) -> str:
        """Apply one edit; raises `workspace.problems.Problem` when it cannot be applied."""
        site = self.site
        edit = site.tree.edit(path, old, new) if old else site.tree.create(path, new)
        if self.state is S.HYPOTHESIS:
            self.move(S.EDITING)
        self.built = False
        self._unbuilt = self._edited_since_build = True
        self.diff = site.tree.diff(site.incumbent.files)
        self.touches_host = self._host_touched()
        site.log.write(
            e.Edited(
                round=self.number,
                path=edit.path,
                added=edit.added,
                removed=edit.removed,
                diff=self.diff,
                touches_host=self.touches_host,
            )
        )
        return _("{path}: {added} lines added, {removed} removed.").format(
            path=edit.path, added=edit.added, removed=edit.removed
        )

    def _host_touched(self) -> str:
        before, now = self.site.incumbent.files.files, self.site.tree.snapshot().files
        for path in self.site.tree.changed_since_snapshot(self.site.incumbent.files):
            old, new = before.get(path), now.get(path)
            why = ""
            if holds_main(_text(old) or _text(new), path):
                why = touches_host(_text(old), _text(new), path)
            if why:
                return f"{path}: {why}"
        return ""

    def compile(self) -> tuple[bool, str]:
        """Build the candidate; the answer holds the compiler's words when it fails."""
        site, bench = self.site, self.site.bench
        limit = site.settings.llm.max_builds
        if self.builds >= limit:
            raise RoundOver(S.FAILED, _("{count} builds and none passed").format(count=limit))
        if not bench.can_keep and bench.compiled and not self._incumbent_before:
            self._incumbent_before = [run_incumbent(site, self.number) for _run in range(3)]
        self.builds += 1
        self._unbuilt = False
        self.move(S.COMPILING)
        self._save_patch(f"-build-{self.builds}")
        ok, text = self._build()
        if not ok:
            self.move(S.EDITING, text.splitlines()[0] if text else "")
            if self.builds >= limit:
                text += "\n" + _("That was the last build of this round.")
            return False, text
        self.built = True
        self.move(S.RUNNING)
        return True, text

    def _build(self) -> tuple[bool, str]:
        bench = self.site.bench
        if not bench.compiled:
            bench.candidate_built()
            return True, _("No build command: the source is run as it is.")
        before = bench.store.scan()
        outcome = bench.build(self.number, self.builds)
        bench.candidate_built()
        rewritten = bench.rewritten(before)
        if bench.incomplete:
            self.move(S.EDITING)
            raise RoundOver(
                S.FAILED,
                _(
                    "the build overwrote files of the best version that were not known to be built; try it again"
                ),
            )
        if not outcome.ok:
            return False, f"{outcome.message}\n{last_lines(outcome.tail, 60)}"
        if self._edited_since_build and not rewritten - bench.noise:
            return False, _(
                "The build did not rebuild anything: it rewrote no file. Does the build know the edited file?"
            )
        self._edited_since_build = False
        return True, _("The build passed in {seconds:.1f} s.").format(seconds=outcome.seconds)

    def benchmark(self) -> str:
        """The verification run: timed, checked, compared with the incumbent's code."""
        if self.cold is not None:
            return _("It ran before: {ms}, every check passed.").format(ms=ms_text(self.cold.ms))
        self._step_begun = self._now()
        site = self.site
        site.bench.program_seconds = 0.0
        self._check_tampering()
        if self.touches_host and not site.attended and not site.settings.verify.allow_host_edits:
            raise RoundOver(
                S.ROLLED_BACK,
                _(
                    "it touches the host program ({where}); allow it with `[verify] allow_host_edits = true`"
                ).format(where=self.touches_host),
            )
        self._keep_build()
        self.cold = self._candidate_run(cold=True)
        self._check_effect(self.cold)
        if self.cold.charged.less and not site.attended:
            raise RoundOver(S.ROLLED_BACK, less_work_text(self.cold.charged.less))
        if site.settings.verify.sanitizer == "every":
            self._sanitize()
        self.move(S.PROFILING)
        judge = site.judge
        paired = site.bench.can_keep
        self._judging = (
            judge.round(self._may_go_on())
            if paired
            else judge.round_unpaired([sample.log for sample in self._incumbent_before])
        )
        next(self._judging)
        self._advance(self.cold)
        self._verdict_seconds += self._now() - self._step_begun
        return _("It ran: {ms} (best {best}), every check passed. Further runs decide.").format(
            ms=ms_text(self.cold.ms), best=ms_text(site.incumbent.ms)
        )

    def _may_go_on(self) -> Callable[[], bool]:
        allowance = self.site.control.left / VERDICT_SHARE
        return lambda: self._verdict_seconds + self._now() - self._step_begun < allowance

    def _now(self) -> float:
        """The session's clock, which stands still while it waits for a person."""
        return self.site.control.elapsed

    def _check_tampering(self) -> None:
        changed = self.site.tamper.changed()
        if changed:
            raise RoundOver(
                S.ROLLED_BACK,
                _(
                    "{file} changed during the round; it is outside the editable set and was left as it is"
                ).format(file=", ".join(changed[:3])),
            )

    def _keep_build(self) -> None:
        """Keep the candidate's build before its program runs, which could remove or change its own files."""
        if not self.site.bench.can_keep:
            return
        try:
            self.site.bench.remember("B")
        except CannotKeep as why:
            raise RoundOver(
                S.ROLLED_BACK, _("the build left nothing that can be kept: {why}").format(why=why)
            ) from why

    def _candidate_run(self, *, cold: bool = False) -> Sample:
        self.runs += 1
        try:
            return self.site.bench.sample("B", "candidate", self.number, cold=cold)
        except CannotKeep as damaged:
            raise RoundOver(S.ROLLED_BACK, _damaged_text(damaged)) from damaged
        except RunFailed as failure:
            if not failure.mismatch:
                raise RoundOver(S.ROLLED_BACK, self._failure_text(failure)) from failure
        self._incumbent_run()
        self.runs += 1
        try:
            return self.site.bench.sample("B", "candidate", self.number, cold=cold)
        except RunFailed as failure:
            raise RoundOver(S.ROLLED_BACK, self._failure_text(failure)) from failure

    def _failure_text(self, failure: RunFailed) -> str:
        if self._samples["B"]:
            return _("a later run failed after {count} good ones: {why}").format(
                count=len(self._samples["B"]), why=failure.reason
            )
        return failure.reason

    def _incumbent_run(self) -> Sample:
        """A run of the incumbent; what it contradicts in the oracle is unlearned and the run repeated once."""
        bench = self.site.bench
        if not bench.can_keep:
            self._swap("A")
        self.runs += 1
        try:
            sample = run_incumbent(self.site, self.number)
        except CannotKeep as damaged:
            raise RoundOver(S.ROLLED_BACK, _damaged_text(damaged)) from damaged
        finally:
            if not bench.can_keep:
                self._swap("B")
        return sample

    def _swap(self, who: Who) -> None:
        """Where builds cannot be kept: bring back the source of one side and build it."""
        site = self.site
        if who == "A":
            self._candidate_files = site.tree.snapshot()
            site.tree.restore(site.incumbent.files)
        else:
            site.tree.restore(self._candidate_files)
        outcome = site.bench.build(self.number, self.builds)
        if not outcome.ok:
            raise IncumbentBroken(_("the build fails that passed before: {why}").format(why=outcome.message))

    def _check_effect(self, cold: Sample) -> None:
        incumbent = self.site.incumbent
        same_code = bool(cold.record.code) and cold.record.code == incumbent.code
        if self.site.bench.same_files() or (same_code and cold.charged.launches == incumbent.launches):
            self.no_effect = True
            raise RoundOver(
                S.ROLLED_BACK,
                _("no effect: the device code and the launches are the same as before"),
                "no effect",
            )

    def _sanitize(self) -> None:
        self.site.bench.place("B")
        found = self.site.bench.sanitize(self.number)
        if found:
            raise RoundOver(S.ROLLED_BACK, found)

    # -- the verdict ---------------------------------------------------------------------------------------

    def _advance(self, sample: Sample) -> Outcome | None:
        """Hand a sample to the judge; its outcome when that was the last one wanted."""
        assert self._judging is not None
        try:
            self._wanted = self._judging.send(sample.log)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        return None

    def decide(self) -> Ruling:
        """Run incumbent and candidate in turn until the verdict is clear."""
        if self.ruling is not None:
            return self.ruling
        self._step_begun = self._now()
        try:
            outcome = self._measure()
        finally:
            if not self.site.bench.compiled:
                self.site.bench.place("B")  # of a script the source itself was swapped
        self._check_tampering()
        self.ruling = self._rule(outcome)
        self._verdict_seconds += self._now() - self._step_begun
        ruling, bench = self.ruling, self.site.bench
        self.site.log.write(
            e.Verdict(
                round=self.number,
                accepted=ruling.accepted,
                kind=ruling.kind,
                reason=ruling.reason,
                gain_percent=outcome.standing.gain_percent,
                low_percent=outcome.standing.low_percent,
                high_percent=outcome.standing.high_percent,
                runs=outcome.standing.runs,
                seconds=self._verdict_seconds,
                run_seconds=bench.program_seconds,
                candidate_ms=ruling.candidate_ms,
                incumbent_ms=self._incumbent_ms(),
            )
        )
        if not ruling.accepted:
            for sample in self._samples["A"]:
                self.site.incumbent.saw(sample)
        return ruling

    def _measure(self) -> Outcome:
        outcome = None
        while outcome is None:
            self.site.control.boundary()
            who = self._wanted
            sample = self._incumbent_run() if who == "A" else self._candidate_run()
            self._samples[who].append(sample)
            outcome = self._advance(sample)
        return outcome

    def _incumbent_ms(self) -> float:
        mine = self._samples["A"] or self._incumbent_before
        return exp(mean(s.log for s in mine)) if mine else self.site.incumbent.ms

    def _candidate_ms(self, *, accepted: bool) -> float:
        """Of an accepted candidate the median of the confirming runs, which did not lead to the acceptance."""
        mine = self._samples["B"]
        if not mine:
            assert self.cold is not None
            return self.cold.ms
        confirming = self.site.judge.rule.confirming
        return median(s.ms for s in (mine[-confirming:] if accepted else mine))

    def _rule(self, outcome: Outcome) -> Ruling:
        incumbent, mine = self.site.incumbent, self._samples
        needs: list[str] = []
        if self.touches_host and not self.site.settings.verify.allow_host_edits:
            needs.append(_("it touches the host program ({where})").format(where=self.touches_host))
        less = next((s.charged.less for s in (self.cold, *mine["B"]) if s and s.charged.less), ())
        if less:
            needs.append(less_work_text(less))
        return rule(
            outcome,
            self._incumbent_ms(),
            self._candidate_ms(accepted=outcome.accepted),
            incumbent=[*incumbent.samples, *mine["A"]],
            candidate=mine["B"],
            min_gain=self.site.settings.judge.min_gain,
            needs="; ".join(needs),
        )

    # -- the diagnosis -------------------------------------------------------------------------------------

    def diagnose(self) -> None:
        """Profile the candidate with ncu, once a round; what comes of it changes no verdict."""
        site = self.site
        if self.profiles or self.cold is None or not site.diagnosis.available:
            return
        site.bench.place("B")
        wanted = choose_launches(self.cold.record, site.bench.scope)
        outcome = site.diagnosis.diagnose(site.bench.run_argv, wanted, "candidate", self.number)
        if outcome is not None and outcome.report is not None:
            self.profiles = site.diagnosis.with_floor(outcome.report.kernels)

    # -- the end -------------------------------------------------------------------------------------------

    def finish_turn(self) -> None:
        """After the agent's turn: build, run and measure what it left unmeasured, until the verdict is there."""
        if self.state is S.HYPOTHESIS:
            raise RoundOver(S.FAILED, _("the agent ended its turn without an edit"))
        if self.state is S.EDITING:
            if not self._unbuilt or self.builds >= self.site.settings.llm.max_builds:
                raise RoundOver(S.FAILED, _("no build passed"))
            passed, text = self.compile()
            if not passed:
                raise RoundOver(S.FAILED, _("no build passed: {why}").format(why=text.splitlines()[0]))
        if self.state is S.RUNNING:
            self.benchmark()
        if self.state is S.PROFILING:
            ruling = self.decide()
            if not ruling.accepted:
                raise RoundOver(S.ROLLED_BACK, ruling.reason, ruling.kind)
            if self.site.settings.verify.sanitizer == "final":
                self._sanitize()

    def _save_patch(self, suffix: str = "") -> str:
        """Keep the candidate as a patch; its path relative to the session directory."""
        self.diff = self.site.tree.diff(self.site.incumbent.files)
        if not self.diff:
            return ""
        name = f"round-{self.number:03d}{suffix}.patch"
        (self.site.paths.patches / name).write_text(self.diff, "utf-8")
        return f"patches/{name}"

    def save_patch(self) -> str:
        """Keep the round's last candidate as a patch."""
        return self._save_patch()

    # -- what the record of the round needs ----------------------------------------------------------------

    @property
    def measured(self) -> bool:
        """Whether a verdict on the time was reached (or the round was recognised as without effect)."""
        return self.ruling is not None or self.no_effect

    def edits_text(self) -> str:
        """Which files the candidate changed, by how many lines."""
        before = self.site.incumbent.files
        names = self.site.tree.changed_since_snapshot(before)
        rows = self.diff.splitlines()
        added = sum(row.startswith("+") and not row.startswith("+++") for row in rows)
        removed = sum(row.startswith("-") and not row.startswith("---") for row in rows)
        return f"{', '.join(names)} (+{added} -{removed})" if names else ""

    def incumbent_ms(self) -> float:
        """Target time of the incumbent as measured in this round, else as known before."""
        return self._incumbent_ms()

    def candidate_ms(self, *, accepted: bool) -> float | None:
        """Target time of the candidate; None when it never ran well."""
        if self.ruling is not None:
            return self.ruling.candidate_ms
        return self._candidate_ms(accepted=accepted) if self.cold is not None else None

    def confirming(self) -> list[Sample]:
        """The runs that confirmed the acceptance."""
        return self._samples["B"][-self.site.judge.rule.confirming :]


def _damaged_text(damaged: CannotKeep) -> str:
    return _("its build was changed while it ran: {why}").format(why=damaged)


def _text(state: FileState | None) -> str:
    return "" if state is None else state.content.decode("utf-8", "replace")


def run_incumbent(site: Site, round_number: int | None) -> Sample:
    """One run of the incumbent. What it contradicts in the oracle is unlearned; a second failure in a row raises
    `IncumbentBroken`."""
    role: Role = "baseline" if site.incumbent.round is None else "best"
    last = ""
    for _attempt in range(2):
        try:
            sample = site.bench.sample("A", role, round_number)
        except RunFailed as failure:
            last = failure.reason
            if failure.mismatch:
                site.bench.unlearn()
                site.log.notice(
                    _(
                        "The accepted version itself printed something else; that is no longer checked: {what}"
                    ).format(what=failure.reason),
                    level="warning",
                )
        else:
            known, found = site.incumbent.code, sample.record.code
            if known and found and known != found:
                raise IncumbentBroken(
                    _(
                        "the kept build of the accepted version is not what runs: its device code is another one"
                    )
                )
            return sample
    raise IncumbentBroken(_("the accepted version itself fails: {why}").format(why=last))
