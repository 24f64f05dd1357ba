"""Quantities as text."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachyon_tui.core import units


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (80.681696, "80.68ms"),
        (0.12345, "0.1235ms"),
        (1.0, "1.00ms"),
        (999.994, "999.99ms"),
        (1240.0, "1.24s"),
        (123_456.0, "123s"),
        (0.0, "0.0000ms"),
    ],
)
def test_ms(ms: float, text: str) -> None:
    assert units.ms_text(ms) == text


@pytest.mark.parametrize(
    ("percent", "sign", "text"),
    [
        (87.04, False, "87.0%"),
        (97.8, True, "+97.8%"),
        (-97.8, True, "-97.8%"),
        (0.009, True, "+0.0%"),
        (-0.009, True, "-0.0%"),
        (-0.009, False, "0.0%"),
        (100.0, False, "100.0%"),
    ],
)
def test_percent(percent: float, sign: bool, text: str) -> None:
    assert units.percent_text(percent, sign=sign) == text


def test_percent_digits() -> None:
    assert units.percent_text(0.123, digits=2) == "0.12%"


@pytest.mark.parametrize(
    ("size", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (541065216, "516.0 MiB"), (2**41, "2.0 TiB")]
)
def test_bytes(size: float, text: str) -> None:
    assert units.bytes_text(size) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(861_849_982_368.0, "862 GB/s"), (4.8117e12, "4.81 TB/s"), (1.5e9, "1.50 GB/s"), (0.0, "0.00 GB/s")],
)
def test_rate(rate: float, text: str) -> None:
    assert units.rate_text(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4s"), (12.4, "12s"), (59.7, "1m00s"), (185, "3m05s"), (3599.9, "1h00m"), (3725, "1h02m")],
)
def test_duration(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


def test_counts_and_costs() -> None:
    assert units.count_text(3262152) == "3 262 152"
    assert units.cost_text(0.03119) == "$0.0312"
    assert units.cost_text(12.4) == "$12.40"


@pytest.mark.parametrize(
    "write",
    [
        units.ms_text,
        units.percent_text,
        units.bytes_text,
        units.rate_text,
        units.count_text,
        units.duration_text,
        units.cost_text,
    ],
)
@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_what_is_not_known_is_never_a_number(
    write: Callable[[float | None], str], nothing: float | None
) -> None:
    assert write(nothing) == units.NOT_AVAILABLE


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_gain_is_the_change_the_other_way(before: float, after: float) -> None:
    assert units.gain_percent(before, after) == -units.change_percent(before, after)
    assert (units.gain_percent(before, after) > 0) == (after < before) or math.isclose(before, after)
