"""Plays one round from the agent's turn to the commit or the rollback."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tachyon_tui.agents.base import AgentError
from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.states import IterationState
from tachyon_tui.core.units import change_percent, gain_percent, ms_text, percent_text
from tachyon_tui.engine.bench import Sample
from tachyon_tui.engine.briefing import RoundNote
from tachyon_tui.engine.control import Interrupted, Skipped, Stopped
from tachyon_tui.engine.conversation import RoundObserver, TimedTools, brief
from tachyon_tui.engine.diagnosis import choose_launches
from tachyon_tui.engine.iteration import IncumbentBroken, Iteration, RoundOver
from tachyon_tui.engine.site import Site
from tachyon_tui.engine.stopping import RoundRecord
from tachyon_tui.engine.toolbox import Toolbox
from tachyon_tui.workspace.problems import Problem
from tachyon_tui.workspace.source_tree import Snapshot, SourceTree

S = IterationState
ACCEPTED_FILE = "accepted.json"


@dataclass(frozen=True)
class RoundResult:
    """What the loop must know of a finished round."""

    record: RoundRecord
    state: IterationState
    stop: Stopped | None = None
    """The session ends with this."""
    failure: AgentError | IncumbentBroken | Problem | None = None
    """The session cannot go on without a person."""


@dataclass(frozen=True)
class _Ending:
    state: IterationState
    reason: str
    interrupted: bool = False
    stop: Stopped | None = None
    failure: AgentError | IncumbentBroken | Problem | None = None


def play_round(site: Site, number: int) -> RoundResult:
    """One round. Where our files or the branch changed under our hands the result carries the `Problem`: then nothing
    was overwritten, and the candidate lies in the tree as it is."""
    begun = time.monotonic()
    site.log.write(e.RoundStarted(round=number))
    site.control.begin_round(number)
    iteration = Iteration(site, number)
    toolbox = Toolbox(iteration, site.settings.max_iterations - number - 1)
    summary = ""
    try:
        iteration.move(S.HYPOTHESIS)
        with site.ledger.spend("model"):
            summary = site.agent.play(
                brief(iteration), TimedTools(toolbox, site.ledger), RoundObserver(site, number)
            )
        site.log.flush()
        if toolbox.over is not None:
            raise toolbox.over
        iteration.finish_turn()
        ending = _judge_accepts(site, iteration)
    except RoundOver as over:
        ending = _Ending(over.state, over.reason)
    except Skipped as skipped:
        ending = _Ending(S.ROLLED_BACK, skipped.reason, interrupted=True)
    except Stopped as stopped:
        ending = _Ending(S.FAILED, stopped.reason, interrupted=True, stop=stopped)
    except AgentError as error:
        ending = _Ending(S.FAILED, _("the model failed: {why}").format(why=error.message), True, None, error)
    except IncumbentBroken as broken:
        ending = _Ending(S.FAILED, str(broken), True, None, broken)
    except Problem as problem:
        ending = _Ending(S.FAILED, problem.message, True, None, problem)
    site.log.flush()
    return _close(site, iteration, toolbox, ending, summary, begun)


def _judge_accepts(site: Site, iteration: Iteration) -> _Ending:
    ruling = iteration.ruling
    assert ruling is not None
    site.control.check(now=True)
    needs = ruling.needs_person
    if needs and not site.attended:
        return _Ending(S.ROLLED_BACK, needs)
    if not (needs or site.control.review):
        return _Ending(S.SUCCESS, ruling.reason)
    iteration.diagnose()
    candidate = f"r{iteration.number}"
    iteration.move(S.REVIEW, needs)
    site.log.write(
        e.ReviewRequested(round=iteration.number, candidate=candidate, why=needs or _("review is on"))
    )
    with site.ledger.spend("person"):
        accepted = site.control.wait_for_review(candidate)
    if accepted:
        return _Ending(S.SUCCESS, ruling.reason)
    return _Ending(S.ROLLED_BACK, _("reverted by the user"))


def _close(
    site: Site, iteration: Iteration, toolbox: Toolbox, ending: _Ending, summary: str, begun: float
) -> RoundResult:
    patch = iteration.save_patch()
    edits = iteration.edits_text()
    before_ms = iteration.incumbent_ms()
    ms = iteration.candidate_ms(accepted=ending.state is S.SUCCESS)
    commit = ""
    try:
        if ending.state is S.SUCCESS:
            commit = _accept(site, iteration, summary)
        else:
            site.judge.turn_down()
            if site.settings.git.auto_rollback and not isinstance(ending.failure, Problem):
                roll_back(site, iteration)
    except Problem as problem:
        site.judge.turn_down()
        ending = _Ending(S.FAILED, problem.message, True, ending.stop, problem)
    except IncumbentBroken as broken:
        ending = _Ending(ending.state, f"{ending.reason}; {broken}", ending.interrupted, ending.stop, broken)
    iteration.move(ending.state, ending.reason, interrupted=ending.interrupted)
    site.control.end_round()
    if ending.state is not S.SUCCESS and not site.settings.git.auto_rollback and iteration.built:
        site.bench.place("B")
    change = change_percent(before_ms, ms) if ms is not None else None
    site.log.write(
        e.RoundFinished(
            round=iteration.number,
            state=ending.state,
            reason=ending.reason,
            summary=summary[:2000],
            ms=ms,
            change_percent=change,
            base_ms=site.base_ms,
            total_percent=gain_percent(site.base_ms, ms) if ms is not None else None,
            commit=commit,
            patch=patch,
            seconds=time.monotonic() - begun,
            builds=iteration.builds,
            calls=toolbox.calls,
            runs=iteration.runs,
            measured=iteration.measured,
        )
    )
    site.notebook.append(
        RoundNote(iteration.number, str(ending.state), summary[:600], _note(ending, ms, before_ms), edits)
    )
    if ending.state is S.SUCCESS:
        _adopt_diagnosis(site, iteration)
    ruling = iteration.ruling
    record = RoundRecord(
        accepted=ending.state is S.SUCCESS,
        measured=iteration.measured,
        gain=-(change or 0.0) / 100,
        unseen=ruling is not None and ruling.kind == "cannot be seen" and not ruling.out_of_time,
    )
    return RoundResult(record, ending.state, ending.stop, ending.failure)


def _note(ending: _Ending, ms: float | None, before_ms: float) -> str:
    if ms is None:
        return ending.reason
    change = percent_text(change_percent(before_ms, ms), sign=True)
    return f"{ending.reason} ({ms_text(before_ms)} -> {ms_text(ms)}, {change})"


def _accept(site: Site, iteration: Iteration, summary: str) -> str:
    site.bench.prepare_promotion()
    now = site.tree.snapshot()
    incumbent, before = site.incumbent, site.incumbent.files
    files = changed_files(site.tree, before)
    commit = ""
    if site.settings.git.auto_commit:
        message = commit_message(site, iteration, summary)
        commit = site.repo.commit_files(
            files,
            message,
            branch=site.settings.git.branch or None,
            expected_head=site.incumbent.head,
            expected_branch=site.branch,
        )
    # From the commit on the candidate is the incumbent, whatever fails after it.
    incumbent.head, incumbent.files, incumbent.round = commit or incumbent.head, now, iteration.number
    site.before[iteration.number] = before
    site.bench.promote()
    if not commit or site.settings.git.branch not in ("", site.branch):
        note_accepted(site, files)  # for the checked-out branch these are uncommitted changes
    if commit and site.repo.warning:
        site.log.notice(site.repo.warning, level="warning")
    ms = iteration.candidate_ms(accepted=True)
    assert iteration.cold is not None
    assert ms is not None
    incumbent.renew(iteration.cold, ms, iteration.confirming())
    incumbent.profiles = ()
    site.judge.set_tick(tick_share(iteration.cold, ms))
    announce(site, incumbent.samples)
    return commit


def announce(site: Site, samples: Sequence[Sample]) -> None:
    """Say how noisy the new incumbent is and which gains may be missed from now on."""
    site.log.write(
        e.Calibrated(
            who="best",
            ms=median(sample.ms for sample in samples),
            samples_ms=tuple(sample.ms for sample in samples),
            noise_percent=site.judge.noise * 100,
            visible_percent=site.judge.visible * 100,
            instrument=samples[-1].record.instrument,
            kernels=samples[-1].charged.kernels,
        )
    )


def changed_files(tree: SourceTree, before: Snapshot) -> dict[str, bytes | None]:
    """What differs from ``before``, with the content on disk now; None for a file that is gone."""
    now = tree.snapshot().files
    return {path: now[path].content if path in now else None for path in tree.changed_since_snapshot(before)}


def tick_share(sample: Sample, ms: float) -> float:
    """The timer's resolution as a share of the target time."""
    return sample.record.tick_ns / (ms * 1e6)


def note_accepted(site: Site, files: dict[str, bytes | None]) -> None:
    """Remember uncommitted accepted files and keep copies of them: the next session must not take them for someone's
    changes, and after a crash there must be something to go back to."""
    copies = accepted_copies(site.paths.folder)
    for name, data in files.items():
        copy = copies / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            copy.unlink(missing_ok=True)
        else:
            copy.write_bytes(data)
    path = site.paths.folder / ACCEPTED_FILE
    known = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    known.update({name: content_hash(data) for name, data in files.items()})
    path.write_text(json.dumps(known, indent=1, sort_keys=True), "utf-8")


def accepted_copies(folder: Path) -> Path:
    """Where a session keeps copies of the files that it accepted without committing them."""
    return folder / "accepted"


def content_hash(data: bytes | None) -> str:
    """SHA-256 of a file's bytes; empty for a file that is gone."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def accepted_before(folder: Path) -> dict[str, str]:
    """Hashes of the files that a session accepted without committing them."""
    path = folder / ACCEPTED_FILE
    try:
        known: dict[str, str] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known


def commit_message(site: Site, iteration: Iteration, summary: str) -> str:
    """The numbers, the interval and the checks; the agent's words last, marked as such."""
    ruling = iteration.ruling
    assert ruling is not None
    target = site.settings.target_kernel or (
        site.kernel_names[0] if len(site.kernel_names) == 1 else "GPU time" if site.kernel_names else "time"
    )
    before, after = iteration.incumbent_ms(), iteration.candidate_ms(accepted=True) or 0.0
    change = percent_text(change_percent(before, after), sign=True)
    name = target.split("(")[0][:40]
    lines = [
        f"tachyon: {name} {ms_text(before)} -> {ms_text(after)} ({change})",
        "",
        f"Round {iteration.number}: {ruling.kind}, {iteration.runs} runs.",
    ]
    if ruling.standing is not None:
        low, high = ruling.standing.low_percent, ruling.standing.high_percent
        lines.append(f"Saving between {percent_text(low)} and {percent_text(high)}.")
    lines.append(
        f"Against the original ({ms_text(site.base_ms)}): {percent_text(gain_percent(site.base_ms, after))} saved."
    )
    lines += [f"Checked: {what}" for what in checks_text(site)]
    if site.settings.verify.sanitizer != "off":
        lines.append(f"compute-sanitizer: {', '.join(site.settings.verify.sanitizer_tools)} found nothing.")
    if summary.strip():
        lines += ["", "In the agent's words:", summary.strip()[:1000]]
    return "\n".join(lines) + "\n"


def checks_text(site: Site) -> list[str]:
    """What every accepted version was checked by, in words."""
    verify, oracle = site.settings.verify, site.bench.oracle
    checks = [oracle.describe()] if oracle is not None and not oracle.empty else []
    if site.bench.outputs.describe():
        checks.append(site.bench.outputs.describe())
    if verify.command.strip():
        checks.append(f"`{verify.command}` exits 0")
    return checks or [_("accepted on the exit code alone")]


def _adopt_diagnosis(site: Site, iteration: Iteration) -> None:
    """The new incumbent's diagnosis: the candidate's own where there is one, else a new ncu run."""
    if iteration.profiles:
        site.incumbent.profiles = iteration.profiles
        site.log.write(
            e.Diagnosed(who="best", round=iteration.number, status="ok", kernels=iteration.profiles)
        )
    elif iteration.cold is not None:
        diagnose_incumbent(site, iteration.cold, iteration.number)


def diagnose_incumbent(site: Site, sample: Sample, round_number: int | None) -> None:
    """Profile the incumbent, which lies in place; an interruption only leaves it without a profile."""
    try:
        wanted = choose_launches(sample.record, site.bench.scope)
        outcome = site.diagnosis.diagnose(site.bench.run_argv, wanted, "best", round_number)
    except Interrupted:
        return
    if outcome is not None and outcome.report is not None:
        site.incumbent.profiles = site.diagnosis.with_floor(outcome.report.kernels)
    else:
        site.why_no_profile = outcome.message if outcome is not None else ""


def check_head(site: Site) -> None:
    """Raise `HeadMoved` when somebody committed, or checked something else out, since we last looked."""
    other_branch = site.settings.git.branch not in ("", site.branch)
    site.repo.check_head(site.start_head if other_branch else site.incumbent.head, site.branch)


def roll_back(site: Site, iteration: Iteration | None) -> None:
    """Put the incumbent's source back and rebuild it; where that build fails, its kept build is put in place."""
    check_head(site)
    changed = site.tree.restore(site.incumbent.files)
    if not (changed or (iteration is not None and iteration.builds)):
        return
    if not site.bench.compiled or (iteration is not None and not iteration.builds):
        site.bench.incumbent_rebuilt()
        return
    with site.control.shielded():
        outcome = site.bench.build(iteration.number if iteration else None, 0)
    if outcome.ok:
        site.bench.incumbent_rebuilt()
        return
    if site.bench.incomplete or not site.bench.can_keep:
        raise IncumbentBroken(_("the accepted source no longer builds: {why}").format(why=outcome.message))
    site.bench.place("A")
    site.log.notice(
        _("The accepted source no longer builds: {why}. Its kept build was put in place.").format(
            why=outcome.message
        ),
        _("Look at the build log in {folder}.").format(folder=site.paths.logs),
        level="warning",
    )
