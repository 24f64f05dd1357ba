"""The table of transitions is the contract's, pair by pair."""

from __future__ import annotations

from itertools import product

import pytest

from tachyon_tui.core.states import IllegalTransition, check_transition
from tachyon_tui.core.states import IterationState as S

TABLE = """
PENDING HYPOTHESIS
HYPOTHESIS EDITING
HYPOTHESIS FAILED
EDITING COMPILING
COMPILING EDITING
COMPILING RUNNING
EDITING FAILED
RUNNING PROFILING
RUNNING ROLLED_BACK
PROFILING SUCCESS
PROFILING ROLLED_BACK
PROFILING REVIEW
REVIEW SUCCESS
REVIEW ROLLED_BACK
"""
ALLOWED = {(S(a), S(b)) for a, b in (line.split() for line in TABLE.split("\n") if line)}
ENDS = {S.SUCCESS, S.FAILED, S.ROLLED_BACK}


@pytest.mark.parametrize(("before", "after"), product(S, S))
def test_work(before: S, after: S) -> None:
    if (before, after) in ALLOWED:
        check_transition(before, after)
    else:
        with pytest.raises(IllegalTransition, match=f"{before} to {after}"):
            check_transition(before, after)


@pytest.mark.parametrize(("before", "after"), product(S, S))
def test_interruptions(before: S, after: S) -> None:
    if before not in ENDS and after in {S.FAILED, S.ROLLED_BACK}:
        check_transition(before, after, interrupted=True)
    else:
        with pytest.raises(IllegalTransition):
            check_transition(before, after, interrupted=True)


def test_the_end_states() -> None:
    assert {state for state in S if state.finished} == ENDS


def test_names_are_what_log_and_journal_show() -> None:
    assert [f"{state}" for state in S] == [state.value for state in S] == [state.name for state in S]
