"""Taking an accepted round back: the state before it returns as a revert commit, and is measured anew."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.engine.bench import Role, RunFailed, Sample
from tachyon_tui.engine.diagnosis import choose_launches
from tachyon_tui.engine.iteration import IncumbentBroken
from tachyon_tui.engine.rounds import announce, changed_files, tick_share
from tachyon_tui.engine.site import Incumbent, Site


def revert_round(site: Site, gone: Sequence[int], left: Sequence[int]) -> None:
    """Return to the state before ``gone[0]``; all rounds in ``gone`` go, those in ``left`` stay accepted.

    Files, commit, build, calibration and diagnosis follow. Raises `IncumbentBroken` when the old state no longer
    builds or runs, `ForeignChange` or `HeadMoved` (nothing was overwritten) when somebody else changed things.
    """
    old = site.before[gone[0]]
    current = site.tree.snapshot()
    site.tree.restore(old)
    files = changed_files(site.tree, current)
    commit = ""
    if site.settings.git.auto_commit and files:
        rounds = ", ".join(f"#{number}" for number in gone)
        commit = site.repo.commit_files(
            files,
            f"tachyon: take back {rounds}\n\nReturns to the state before round {gone[0]}.\n",
            branch=site.settings.git.branch or None,
            expected_head=site.incumbent.head,
            expected_branch=site.branch,
        )
    if site.bench.compiled:
        outcome = site.bench.build(None, 0)
        if not outcome.ok:
            raise IncumbentBroken(
                _("the state before round {number} no longer builds").format(number=gone[0])
            )
    site.bench.incumbent_rebuilt()
    site.bench.remember("A")
    site.bench.place("A")
    head = commit or site.incumbent.head
    site.incumbent = Incumbent(old, head, round=left[-1] if left else None)
    _calibrate(site)
    site.log.write(e.Reverted(rounds=tuple(gone), commit=commit, best_ms=site.incumbent.ms))
    if site.incumbent.round is None:
        site.incumbent.profiles = site.base_profiles
    elif site.diagnosis.available:
        sample = site.incumbent.samples[-1]
        wanted = choose_launches(sample.record, site.bench.scope)
        found = site.diagnosis.diagnose(site.bench.run_argv, wanted, "best", None)
        if found is not None and found.report is not None:
            site.incumbent.profiles = site.diagnosis.with_floor(found.report.kernels)


def _calibrate(site: Site) -> None:
    role: Role = "baseline" if site.incumbent.round is None else "best"
    samples: list[Sample] = []
    try:
        for index in range(1 + site.judge.rule.calibration):
            site.control.boundary()
            samples.append(site.bench.sample("A", role, None, cold=index == 0))
    except RunFailed as failure:
        raise IncumbentBroken(
            _("the earlier state no longer runs: {why}").format(why=failure.reason)
        ) from failure
    warm = samples[1:]
    middle = median(sample.ms for sample in warm)
    site.incumbent.renew(warm[-1], middle, warm)
    site.judge.set_tick(tick_share(warm[-1], middle))
    site.judge.calibrate([sample.log for sample in warm])
    announce(site, warm)
