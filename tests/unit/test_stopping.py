"""Every rule that ends a session by itself, on both sides of its boundary."""

from __future__ import annotations

import pytest

from tachyon_tui.core.settings import ConvergenceSettings
from tachyon_tui.engine.stopping import RoundRecord, at_floor, converged

RULE = ConvergenceSettings(min_gain=0.02, patience=4)
VISIBLE = 0.027
REJECTED = RoundRecord(accepted=False, measured=True)
BROKEN = RoundRecord(accepted=False, measured=False)
UNSEEN = RoundRecord(accepted=False, measured=True, unseen=True)
SMALL = "gained less than 2.0% each"
PATIENCE = "4 measured rounds in a row"
NOISE = "noise hides gains below 2.7%"


def won(gain: float) -> RoundRecord:
    return RoundRecord(accepted=True, measured=True, gain=gain)


@pytest.mark.parametrize(
    ("rounds", "reason"),
    [
        ([], ""),
        ([won(0.01)], ""),
        ([won(0.01), won(0.01)], SMALL),
        ([won(0.5), won(0.019), won(0.0199)], SMALL),
        ([won(0.01), won(0.02)], ""),
        ([won(0.02), won(0.01)], ""),
        ([won(0.01), won(0.5), won(0.01)], ""),
        ([won(0.01), REJECTED, BROKEN, won(0.01)], SMALL),
        ([won(0.01), won(0.01), REJECTED], ""),
    ],
)
def test_two_small_gains(rounds: list[RoundRecord], reason: str) -> None:
    assert reason in converged(rounds, RULE, VISIBLE)
    assert bool(converged(rounds, RULE, VISIBLE)) is bool(reason)


@pytest.mark.parametrize(
    ("rounds", "reason"),
    [
        ([REJECTED] * 3, ""),
        ([REJECTED] * 4, PATIENCE),
        ([won(0.5)] + [REJECTED] * 4, PATIENCE),
        ([REJECTED] * 3 + [won(0.5)], ""),
        ([REJECTED] * 3 + [won(0.5)] + [REJECTED] * 3, ""),
        ([BROKEN] * 9, ""),
        ([REJECTED] * 3 + [BROKEN] * 3, ""),
        ([REJECTED, BROKEN, REJECTED, BROKEN, REJECTED, BROKEN, REJECTED], PATIENCE),
        ([REJECTED, UNSEEN, REJECTED, UNSEEN], PATIENCE),
    ],
)
def test_patience(rounds: list[RoundRecord], reason: str) -> None:
    """Rounds that were not measured neither count nor reset."""
    assert reason in converged(rounds, RULE, VISIBLE)
    assert bool(converged(rounds, RULE, VISIBLE)) is bool(reason)


@pytest.mark.parametrize(
    ("patience", "rounds", "ends"), [(0, 50, False), (1, 1, True), (6, 5, False), (6, 6, True)]
)
def test_patience_is_a_setting(patience: int, rounds: int, ends: bool) -> None:
    rule = ConvergenceSettings(patience=patience)
    assert bool(converged([REJECTED] * rounds, rule, VISIBLE)) is ends


@pytest.mark.parametrize(
    ("rounds", "reason"),
    [
        ([UNSEEN], ""),
        ([UNSEEN, UNSEEN], NOISE),
        ([UNSEEN, BROKEN, UNSEEN], NOISE),
        ([UNSEEN, REJECTED, UNSEEN], ""),
        ([UNSEEN, won(0.5), UNSEEN], ""),
        ([UNSEEN, UNSEEN, REJECTED], ""),
        ([REJECTED, REJECTED, UNSEEN, UNSEEN], NOISE),
    ],
)
def test_noise_is_not_convergence(rounds: list[RoundRecord], reason: str) -> None:
    """Two rounds that cannot be seen end the session with that reason, not with patience."""
    assert reason in converged(rounds, RULE, VISIBLE)
    assert bool(converged(rounds, RULE, VISIBLE)) is bool(reason)


@pytest.mark.parametrize(
    ("best_ms", "floor_ms", "stop", "ends"),
    [
        (1.11, 1.0, 0.1, False),
        (1.10, 1.0, 0.1, True),
        (0.90, 1.0, 0.1, True),
        (1.01, 1.0, 0.0, False),
        (1.00, 1.0, 0.0, True),
        (1e-9, None, 0.1, False),
    ],
)
def test_the_floor_of_the_given_bytes(
    best_ms: float, floor_ms: float | None, stop: float, ends: bool
) -> None:
    reason = at_floor(best_ms, floor_ms, stop)
    assert bool(reason) is ends
    assert not ends or f"{stop * 100:.1f}%" in reason
