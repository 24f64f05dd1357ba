"""From the judge's outcome to a ruling: the audit of what else changed, and the words for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tachyon_tui.core.i18n import _
from tachyon_tui.core.units import change_percent, gain_percent, ms_text, percent_text
from tachyon_tui.engine.bench import Sample
from tachyon_tui.engine.charge import audit
from tachyon_tui.engine.judge import Outcome, Standing


@dataclass(frozen=True)
class Ruling:
    """The verdict on the candidate with what the audit added."""

    accepted: bool
    kind: str
    reason: str
    standing: Standing | None
    candidate_ms: float | None
    needs_person: str = ""
    """Why a person must decide; headless it is a rejection."""
    out_of_time: bool = False


def rule(
    outcome: Outcome,
    before_ms: float,
    after_ms: float,
    *,
    incumbent: Sequence[Sample],
    candidate: Sequence[Sample],
    min_gain: float,
    needs: str,
) -> Ruling:
    """The ruling on a candidate: what the judge says, unless time was only moved to where the judge does not look.

    ``incumbent`` and ``candidate`` are the warm runs of both sides; ``needs`` says why a person must decide.
    """
    text = verdict_text(outcome, before_ms, after_ms)
    if not outcome.accepted:
        return Ruling(False, outcome.kind, text, outcome.standing, after_ms, out_of_time=outcome.out_of_time)
    checked = audit(
        [s.charged for s in incumbent],
        [s.charged for s in candidate],
        [s.seconds for s in incumbent],
        [s.seconds for s in candidate],
        max(0.0, before_ms - after_ms),
    )
    if checked.reason:
        return Ruling(False, "rejected", checked.reason, outcome.standing, after_ms)
    charged = after_ms + checked.charge_ms
    if checked.charge_ms and gain_percent(before_ms, charged) < min_gain * 100:
        reason = _("what it saved is spent outside the target: {before} became {after} in all").format(
            before=ms_text(before_ms), after=ms_text(charged)
        )
        return Ruling(False, "rejected", reason, outcome.standing, charged)
    return Ruling(True, outcome.kind, text, outcome.standing, charged, needs)


def less_work_text(less: Sequence[str]) -> str:
    """Why a candidate that does less than the baseline is not simply accepted."""
    return _("it does less work than the baseline: {what}").format(what="; ".join(less[:3]))


def verdict_text(outcome: Outcome, before_ms: float, after_ms: float) -> str:
    """The judge's word as one sentence for a person."""
    standing = outcome.standing
    change = percent_text(change_percent(before_ms, after_ms), sign=True)
    times = _("{before} became {after}, {runs} runs").format(
        before=ms_text(before_ms), after=ms_text(after_ms), runs=standing.runs
    )
    interval = _("saving between {low} and {high}").format(
        low=percent_text(standing.low_percent), high=percent_text(standing.high_percent)
    )
    match outcome.kind:
        case "clear gain":
            return _("faster: {change}: {times}, clearly apart").format(change=change, times=times)
        case "gain":
            return _("faster: {change}: {times}, {interval}").format(
                change=change, times=times, interval=interval
            )
        case "clearly slower":
            return _("clearly slower: {change}: {times}").format(change=change, times=times)
        case "no gain":
            return _("not faster: {change}: {times}").format(change=change, times=times)
        case "not confirmed":
            return _("the gain did not show again in the confirming runs: {times}").format(times=times)
        case "cannot be seen":
            if outcome.out_of_time:
                return _("not decided within a tenth of the time left: {times}, {interval}").format(
                    times=times, interval=interval
                )
            return _("cannot be seen at this noise: {times}, {interval}").format(
                times=times, interval=interval
            )
