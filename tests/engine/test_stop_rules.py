"""Whole sessions that end by themselves, one test a stop rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.lab import CRASH, FASTER, SLOWER, Lab, body, slightly, turn

Patch = pytest.MonkeyPatch


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def cheaper(before: int, after: int) -> list[dict[str, Any]]:
    """From one `slightly` to the next."""
    return [body(f"fake_gpu::cost -= {after};", f"fake_gpu::cost -= {before};")]


def test_two_accepted_rounds_in_a_row_with_little_gain(lab: Lab, monkeypatch: Patch) -> None:
    scenario = [turn(slightly(2)), turn(cheaper(2, 4)), turn(FASTER)]
    result = lab.run(monkeypatch, scenario, max_iterations=5, convergence__min_gain=0.08)
    assert result.states == ["SUCCESS", "SUCCESS"]
    assert "converged" in result.finished.reason
    assert result.code == 0


def test_measured_rounds_without_an_acceptance(lab: Lab, monkeypatch: Patch) -> None:
    slower = [turn(SLOWER) for _ in range(4)]
    scenario = [slower[0], turn(CRASH), [{"text": "no idea"}], slower[1], turn(FASTER)]
    result = lab.run(monkeypatch, scenario, max_iterations=9, convergence__patience=2)
    assert result.states == ["ROLLED_BACK", "ROLLED_BACK", "FAILED", "ROLLED_BACK"], "crashes do not count"
    assert "2 measured rounds" in result.finished.reason
    assert result.code == 3


def test_the_round_limit(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(SLOWER), turn(SLOWER)], max_iterations=1)
    assert result.states == ["ROLLED_BACK"]
    assert "limit of 1 rounds" in result.finished.reason


def test_the_floor_that_the_given_bytes_allow(lab: Lab, monkeypatch: Patch) -> None:
    # 2.6 us of the fake kernel against the DRAM peak of the recorded report, 4.8 TB/s.
    result = lab.run(monkeypatch, [turn(FASTER), turn(SLOWER)], max_iterations=5, floor__bytes=15e6)
    assert result.states == ["SUCCESS"]
    assert "floor" in result.finished.reason


def test_a_far_floor_stops_nothing(lab: Lab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [turn(FASTER), [{"text": "x"}]], max_iterations=2, floor__bytes=1e6)
    assert result.states == ["SUCCESS", "FAILED"]
