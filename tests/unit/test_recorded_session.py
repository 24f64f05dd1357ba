"""The session recorded on an H200 (assets/sessions/cu_reduce-h200): what happened, what the model was really told."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core import events as e
from tachyon_tui.core.session import JournalReader, SessionPaths
from tachyon_tui.core.view import fold_all

RECORD = Path(__file__).resolve().parents[2] / "assets" / "sessions" / "cu_reduce-h200"
HINT = "one warp per row and float4 loads, please"


@pytest.fixture(scope="module")
def events() -> list[Any]:
    return list(JournalReader(SessionPaths(RECORD)).events())


@pytest.fixture(scope="module")
def told() -> list[list[dict[str, Any]]]:
    """The messages of every request, in order."""
    text = lzma.decompress((RECORD / "requests.jsonl.xz").read_bytes()).decode("utf-8")
    return [json.loads(line)["messages"] for line in text.splitlines()]


def openings(told: list[list[dict[str, Any]]]) -> list[str]:
    """What the model was told at the start of each round."""
    return [
        "\n".join(str(message["content"]) for message in messages)
        for messages in told
        if all(message["role"] in ("system", "user") for message in messages)
    ]


def test_from_80_ms_to_the_memory_floor(events: list[Any]) -> None:
    view = fold_all(events)
    assert view.finished is not None
    assert view.finished.exit_code == 0
    assert view.remeasured is not None
    assert view.remeasured.confirmed
    assert 80 < view.remeasured.base_ms < 81.5
    assert view.remeasured.best_ms <= 0.13
    assert view.gpu is not None
    assert view.gpu.name == "NVIDIA H200"


def test_at_least_eight_rounds_of_every_kind(events: list[Any]) -> None:
    view = fold_all(events)
    assert len(view.rounds) >= 8
    reasons = [item.reason for item in view.rounds]
    for words in ("no effect", "mismatches=", "illegal memory access", "clearly slower", "not faster"):
        assert any(words in reason for reason in reasons), words
    builds = [
        (b.round, b.ok) for b in events if isinstance(b, e.BuildFinished) and b.round == 1 and b.attempt
    ]
    assert builds == [(1, False), (1, True)], "a failed build was mended"
    assert len(view.accepted) == 3


def test_every_candidate_is_kept_as_a_patch_and_every_acceptance_as_a_commit(events: list[Any]) -> None:
    view = fold_all(events)
    commits = (RECORD / "commits.patch").read_text("utf-8")
    for item in view.rounds:
        assert (RECORD / item.patch).read_text("utf-8").startswith("diff --git a/reduce.cu")
        assert bool(item.commit) == item.accepted
        assert not item.commit or item.commit in commits


def test_the_model_was_told_the_hot_line_and_the_floor(told: list[list[dict[str, Any]]]) -> None:
    first = openings(told)[0]
    assert "reduce.cu:10 87." in first
    assert "atomicAdd(&out[row], in[i]);" in first
    assert "floor: 4.49ms, bound by issue" in first


def test_the_model_was_told_the_last_verdict_with_its_reason(told: list[list[dict[str, Any]]]) -> None:
    rounds = openings(told)
    assert "#5 ROLLED_BACK: clearly slower: +" in rounds[6]
    assert "#4 SUCCESS: faster: -7" in rounds[5]
    assert "#3 ROLLED_BACK: the program failed: exit code 2" in rounds[4]


def test_the_hint_of_round_2_reached_the_model_in_round_2(
    events: list[Any], told: list[list[dict[str, Any]]]
) -> None:
    hints = [event for event in events if isinstance(event, e.HintChanged)]
    assert [(hint.status, hint.round, hint.text) for hint in hints] == [
        ("queued", 2, HINT),
        ("delivered", 2, HINT),
        ("answered", 2, HINT),
    ]
    starts = [i for i, messages in enumerate(told) if len(messages) == 2]
    first = next(i for i, messages in enumerate(told) if HINT in json.dumps(messages))
    assert starts[2] < first < starts[3]
