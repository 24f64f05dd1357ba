"""Taking an accepted round back: the state before it returns as a revert commit, and is measured anew."""

from __future__ import annotations

from collections.abc import Sequence

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.engine.iteration import IncumbentBroken
from tachyon_tui.engine.recalibrate import calibrate
from tachyon_tui.engine.rounds import changed_files, check_head, diagnose_incumbent, note_accepted
from tachyon_tui.engine.site import Incumbent, Site
from tachyon_tui.workspace.problems import Problem


def revert_round(site: Site, gone: Sequence[int], left: Sequence[int]) -> None:
    """Return to the state before ``gone[0]``; all rounds in ``gone`` go, those in ``left`` stay accepted.

    Files, commit and build change together or not at all; the calibration and the diagnosis follow. Raises
    `IncumbentBroken` when the old state no longer builds or runs, `ForeignChange` or `HeadMoved` (nothing was
    overwritten) when somebody else changed things.
    """
    check_head(site)
    old, current = site.before[gone[0]], site.tree.snapshot()
    samples = [site.base_ms] if not left else [site.incumbent.ms]
    with site.control.shielded():
        site.tree.restore(old)
        try:
            commit = _commit(site, gone, changed_files(site.tree, current))
        except Problem:
            site.tree.restore(current)
            raise
        for number in gone:
            site.before.pop(number, None)
        site.incumbent = Incumbent(
            old, commit or site.incumbent.head, ms=samples[0], round=left[-1] if left else None
        )
        site.log.write(e.Reverted(rounds=tuple(gone), commit=commit, best_ms=site.incumbent.ms))
        if site.bench.compiled and not site.bench.build(None, 0).ok:
            raise IncumbentBroken(
                _("the state before round {number} no longer builds").format(number=gone[0])
            )
        site.bench.incumbent_rebuilt(anew=True)
    calibrate(site)
    if site.incumbent.round is None:
        site.incumbent.profiles = site.base_profiles
    else:
        diagnose_incumbent(site, site.incumbent.samples[-1], None)


def _commit(site: Site, gone: Sequence[int], files: dict[str, bytes | None]) -> str:
    if not site.settings.git.auto_commit:
        note_accepted(site, files)
        return ""
    if not files:
        return ""
    rounds = ", ".join(f"#{number}" for number in gone)
    return site.repo.commit_files(
        files,
        f"tachyon: take back {rounds}\n\nReturns to the state before round {gone[0]}.\n",
        branch=site.settings.git.branch or None,
        expected_head=site.incumbent.head,
        expected_branch=site.branch,
    )
