"""Student's t against published and closed-form quantiles, and the paired interval."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import acos, cos, exp, lgamma, log1p, pi, sqrt, tan
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachyon_tui.engine.student import paired_interval, t_quantile, t_survival


@pytest.mark.parametrize(
    ("alpha", "df", "published"),
    [
        (0.025, 1, 12.706),
        (0.025, 2, 4.303),
        (0.025, 3, 3.182),
        (0.025, 4, 2.776),
        (0.025, 5, 2.571),
        (0.025, 9, 2.262),
        (0.025, 30, 2.042),
        (0.025, 120, 1.980),
        (0.05, 4, 2.132),
        (0.005, 4, 4.604),
        (0.001, 1, 318.309),
        (0.001, 2, 22.327),
        (0.001, 8, 4.501),
        (0.001, 30, 3.385),
        (0.0005, 4, 8.610),
        (0.0005, 10, 4.587),
    ],
)
def test_published_quantiles(alpha: float, df: int, published: float) -> None:
    assert t_quantile(alpha, df) == pytest.approx(published, abs=6e-4)


def _one(alpha: float) -> float:
    return 1 / tan(pi * alpha)


def _two(alpha: float) -> float:
    return (1 - 2 * alpha) / sqrt(2 * alpha * (1 - alpha))


def _four(alpha: float) -> float:
    product = 4 * alpha * (1 - alpha)
    return 2 * sqrt(cos(acos(sqrt(product)) / 3) / sqrt(product) - 1)


@pytest.mark.parametrize("alpha", [2e-4, 1e-3, 0.025, 0.3])
@pytest.mark.parametrize(("df", "closed_form"), [(1, _one), (2, _two), (4, _four)])
def test_closed_forms(alpha: float, df: int, closed_form: Callable[[float], float]) -> None:
    assert t_quantile(alpha, df) == pytest.approx(closed_form(alpha), rel=1e-6)


@pytest.mark.parametrize("df", [3, 5, 8, 9, 20, 61])
@pytest.mark.parametrize("alpha", [2e-4, 1e-3, 0.1])
def test_area_under_the_density(df: int, alpha: float) -> None:
    """Simpson's rule from 0 to the quantile holds all but ``alpha`` of the upper half."""
    top, steps = t_quantile(alpha, df), 4000
    scale = exp(lgamma((df + 1) / 2) - lgamma(df / 2)) / sqrt(df * pi)

    def density(t: float) -> float:
        return scale * exp(-(df + 1) / 2 * log1p(t * t / df))

    width = top / steps
    weights = [1, *([4, 2] * (steps // 2 - 1)), 4, 1]
    area = sum(w * density(i * width) for i, w in enumerate(weights)) * width / 3
    assert 0.5 - area == pytest.approx(alpha, rel=1e-5)


def test_the_normal_limit() -> None:
    z, df = NormalDist().inv_cdf(1 - 2e-4), 2000
    assert t_quantile(2e-4, df) == pytest.approx(z + (z**3 + z) / (4 * df), abs=1e-4)


@settings(deadline=None)
@given(st.floats(-200, 200), st.integers(1, 60))
def test_symmetry(t: float, df: int) -> None:
    assert t_survival(t, df) + t_survival(-t, df) == pytest.approx(1)
    assert 0 <= t_survival(t, df) <= 1


@settings(deadline=None)
@given(st.floats(1e-5, 0.49), st.integers(1, 60))
def test_quantile_is_the_inverse(alpha: float, df: int) -> None:
    assert t_survival(t_quantile(alpha, df), df) == pytest.approx(alpha, rel=1e-5)


@settings(deadline=None)
@given(st.floats(0, 50), st.floats(0.01, 50), st.integers(1, 60))
def test_survival_falls(t: float, more: float, df: int) -> None:
    assert t_survival(t + more, df) <= t_survival(t, df) + 1e-15


@settings(deadline=None)
@given(st.floats(1e-4, 0.4), st.integers(1, 60))
def test_quantile_falls_with_alpha_and_with_df(alpha: float, df: int) -> None:
    assert t_quantile(alpha, df) > t_quantile(alpha * 1.1, df)
    assert t_quantile(alpha, df) > t_quantile(alpha, df + 1)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 0.5, 1.0])
def test_alpha_outside_its_range_is_an_error(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        t_quantile(alpha, 5)


def test_paired_interval_of_known_numbers() -> None:
    """Mean 3, standard deviation sqrt(2.5), five pairs: half width 2.776 sqrt(2.5 / 5)."""
    assert paired_interval([1, 2, 3, 4, 5]) == pytest.approx((3, 3 - 1.9634, 3 + 1.9634), abs=1e-3)
    mean, low, high = paired_interval([1, 2, 3, 4, 5], confidence=0.99)
    assert (mean, high - mean, mean - low) == pytest.approx((3, 3.2558, 3.2558), abs=1e-3)


@pytest.mark.parametrize("differences", [[], [0.1]])
def test_paired_interval_needs_two_pairs(differences: list[float]) -> None:
    with pytest.raises(ValueError, match="two pairs"):
        paired_interval(differences)


@pytest.mark.parametrize(("pairs", "confidence"), [(5, 0.95), (10, 0.95), (5, 0.8)])
def test_coverage_of_the_paired_interval(pairs: int, confidence: float) -> None:
    random_ = random.Random(20)
    tries = 2000
    covered = 0
    for _try in range(tries):
        _mean, low, high = paired_interval([random_.gauss(-0.03, 0.007) for _ in range(pairs)], confidence)
        covered += low <= -0.03 <= high
    margin = 4 * sqrt(confidence * (1 - confidence) / tries)
    assert covered / tries == pytest.approx(confidence, abs=margin)
