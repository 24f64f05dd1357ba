"""Student's t distribution for whole degrees of freedom, and the interval of a paired difference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import atan, cos, pi, sin, sqrt
from statistics import mean, stdev


def t_survival(t: float, df: int) -> float:
    """P(T > t) for ``df`` >= 1, by the finite series of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = atan(abs(t) / sqrt(df))
    c, s = cos(angle), sin(angle)
    term, total = (1.0, 1.0) if df % 2 == 0 else (c, c)
    for k in range(2 + df % 2, df, 2):
        term *= c * c * (k - 1) / k
        total += term
    inside = s * total if df % 2 == 0 else 2 / pi * (angle + (s * total if df > 1 else 0.0))
    tail = max(0.0, (1 - inside) / 2)
    return tail if t >= 0 else 1 - tail


@lru_cache(maxsize=512)
def t_quantile(alpha: float, df: int) -> float:
    """The t that is exceeded with probability ``alpha`` (0 < alpha < 0.5), by bisection to 1e-9."""
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie between 0 and 0.5, not {alpha}")
    low, high = 0.0, 1.0
    while t_survival(high, df) > alpha:
        high *= 2
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if t_survival(middle, df) > alpha else (low, middle)
    return (low + high) / 2


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of paired differences and its two-sided interval: ``(mean, low, high)``.

    Raises `ValueError` for less than two pairs.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"an interval needs two pairs, not {n}")
    centre = mean(differences)
    half = t_quantile((1 - confidence) / 2, n - 1) * stdev(differences) / sqrt(n)
    return centre, centre - half, centre + half
