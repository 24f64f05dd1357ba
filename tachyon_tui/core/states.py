"""The states of one round and the table of transitions between them (a contract: log, screen, journal)."""

from __future__ import annotations

from enum import Enum


class IterationState(str, Enum):
    """State of a round; the value is what log, screen and journal show."""

    PENDING = "PENDING"
    HYPOTHESIS = "HYPOTHESIS"
    EDITING = "EDITING"
    COMPILING = "COMPILING"
    RUNNING = "RUNNING"
    PROFILING = "PROFILING"
    REVIEW = "REVIEW"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    ROLLED_BACK = "ROLLED_BACK"

    def __str__(self) -> str:
        return self.value

    @property
    def finished(self) -> bool:
        """True when the round is over."""
        return self in FINISHED


S = IterationState
FINISHED = frozenset({S.SUCCESS, S.FAILED, S.ROLLED_BACK})

WORK: frozenset[tuple[IterationState, IterationState]] = frozenset(
    {
        (S.PENDING, S.HYPOTHESIS),
        (S.HYPOTHESIS, S.EDITING),
        (S.HYPOTHESIS, S.FAILED),
        (S.EDITING, S.COMPILING),
        (S.EDITING, S.FAILED),
        (S.COMPILING, S.EDITING),
        (S.COMPILING, S.RUNNING),
        (S.RUNNING, S.PROFILING),
        (S.RUNNING, S.ROLLED_BACK),
        (S.PROFILING, S.SUCCESS),
        (S.PROFILING, S.ROLLED_BACK),
        (S.PROFILING, S.REVIEW),
        (S.REVIEW, S.SUCCESS),
        (S.REVIEW, S.ROLLED_BACK),
    }
)
"""Transitions that the work of a round makes by itself."""

INTERRUPTIONS = frozenset(
    (state, end) for state in S if state not in FINISHED for end in (S.ROLLED_BACK, S.FAILED)
)
"""From any unfinished state: skipped by the user (ROLLED_BACK); model error, total timeout, stop (FAILED)."""


class IllegalTransition(AssertionError):
    """A transition that the table does not hold: a bug of ours, never a user's error."""


def check_transition(before: IterationState, after: IterationState, *, interrupted: bool = False) -> None:
    """Raise `IllegalTransition` unless the table allows ``before`` to ``after``.

    ``interrupted`` marks an end that the user, a timeout or the model's provider caused.
    """
    table = INTERRUPTIONS if interrupted else WORK
    if (before, after) not in table:
        kind = "interruption" if interrupted else "transition"
        raise IllegalTransition(f"no {kind} from {before} to {after}")
