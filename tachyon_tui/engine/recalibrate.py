"""Measuring the incumbent anew: after a revert, and after somebody changed a file outside the editable set."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tachyon_tui.core.i18n import _
from tachyon_tui.engine.bench import RunFailed, Sample
from tachyon_tui.engine.iteration import IncumbentBroken, run_incumbent
from tachyon_tui.engine.rounds import announce, check_head, tick_share
from tachyon_tui.engine.site import Site


def calibrate(site: Site) -> None:
    """One cold run of the incumbent that never counts, then the warm ones; judge and incumbent begin anew with them.

    Raises `IncumbentBroken` when it does not run well every time.
    """
    site.incumbent.code = frozenset()
    samples: list[Sample] = []
    try:
        for _index in range(1 + site.judge.rule.calibration):
            site.control.boundary()
            samples.append(run_incumbent(site, None))
    except RunFailed as failure:
        raise IncumbentBroken(
            _("the accepted state no longer runs: {why}").format(why=failure.reason)
        ) from failure
    warm = samples[1:]
    middle = median(sample.ms for sample in warm)
    site.incumbent.renew(warm[-1], middle, warm)
    site.judge.set_tick(tick_share(warm[-1], middle))
    site.judge.calibrate([sample.log for sample in warm])
    announce(site, warm)


def after_foreign_change(site: Site, changed: Sequence[str]) -> None:
    """Files outside the editable set are no longer what the incumbent was built from: build and measure it anew.

    Else the next candidate would be built with the change, and be compared with a program without it. The original
    is built anew as well, for the final re-measurement. Raises `IncumbentBroken`, `HeadMoved`, `ForeignChange`.
    """
    site.log.notice(
        _(
            "{files} changed, outside the editable set: the accepted version is built and measured anew."
        ).format(files=", ".join(changed[:5])),
        level="warning",
    )
    check_head(site)
    site.tamper.start()
    with site.control.shielded():
        if site.before:
            _rebuild_original(site)
        if site.bench.compiled:
            site.tree.touch()
            outcome = site.bench.build(None, 0)
            if not outcome.ok:
                raise IncumbentBroken(
                    _("with that change the accepted version no longer builds: {why}").format(
                        why=outcome.message
                    )
                )
        site.bench.incumbent_rebuilt(anew=True)
        if not site.before:
            site.bench.remember("original")
    calibrate(site)
    if not site.before:
        site.base_ms = site.incumbent.ms


def _rebuild_original(site: Site) -> None:
    original = site.before[min(site.before)]
    site.tree.restore(original)
    try:
        site.tree.touch()
        if not site.bench.compiled or site.bench.build(None, 0).ok:
            site.bench.remember("original")
        else:
            site.bench.forget_original()
    finally:
        site.tree.restore(site.incumbent.files)
