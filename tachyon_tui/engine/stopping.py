"""When a session ends by itself: pure rules over the rounds so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tachyon_tui.core.i18n import _
from tachyon_tui.core.settings import ConvergenceSettings
from tachyon_tui.core.units import percent_text

CONVERGED_ROUNDS = 2
UNSEEN_ROUNDS = 2


@dataclass(frozen=True)
class RoundRecord:
    """What the stop rules need of one round."""

    accepted: bool
    measured: bool
    """True when a verdict on the time was reached; failed builds and crashes are not measured."""
    gain: float = 0.0
    """Share of the time saved against the incumbent, 0 to 1."""
    unseen: bool = False
    """The verdict was “cannot be seen at this noise”."""


def converged(rounds: Sequence[RoundRecord], rule: ConvergenceSettings, visible: float) -> str:
    """Why the session ends after these rounds; empty when it goes on.

    ``visible`` is the smallest gain (0 to 1) that is surely seen at the noise of this program.
    """
    gains = [r.gain for r in rounds if r.accepted][-CONVERGED_ROUNDS:]
    if len(gains) == CONVERGED_ROUNDS and rounds[-1].accepted and max(gains) < rule.min_gain:
        return _("converged: the last {count} accepted rounds gained less than {gain} each").format(
            count=CONVERGED_ROUNDS, gain=percent_text(rule.min_gain * 100)
        )
    measured = [r for r in rounds if r.measured]
    last = measured[-UNSEEN_ROUNDS:]
    if len(last) == UNSEEN_ROUNDS and all(r.unseen for r in last):
        return _("noise hides gains below {gain} here").format(gain=percent_text(visible * 100))
    if (
        rule.patience
        and len(measured) >= rule.patience
        and not any(r.accepted for r in measured[-rule.patience :])
    ):
        return _("{count} measured rounds in a row brought no gain").format(count=rule.patience)
    return ""


def at_floor(best_ms: float, floor_ms: float | None, stop: float) -> str:
    """Why the session ends when the target is close to the floor that the user's bytes allow; else empty."""
    if floor_ms is None or best_ms > floor_ms * (1 + stop):
        return ""
    return _("within {share} of the floor that the given bytes allow").format(share=percent_text(stop * 100))
