"""Each second of a session is booked once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachyon_tui.engine.ledger import Account, Ledger

ACCOUNTS: tuple[Account, ...] = ("engine", "build", "run", "ncu", "check", "model", "person")


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def totals(ledger: Ledger) -> dict[str, float]:
    return {account: ledger.total(account) for account in ACCOUNTS if ledger.total(account)}


def test_time_that_nothing_claims_is_the_engine_s(clock: FakeClock) -> None:
    ledger = Ledger(clock)
    clock.now += 3
    assert totals(ledger) == {"engine": 3}


def test_nested_work_goes_to_the_innermost_account(clock: FakeClock) -> None:
    ledger = Ledger(clock)
    clock.now += 1
    with ledger.spend("model"):
        clock.now += 10
        with ledger.spend("engine"):
            clock.now += 2
            with ledger.spend("build"):
                clock.now += 30
            clock.now += 2
        clock.now += 100
    clock.now += 1
    assert totals(ledger) == {"engine": 6, "model": 110, "build": 30}


def test_an_account_inside_itself_is_not_counted_twice(clock: FakeClock) -> None:
    ledger = Ledger(clock)
    with ledger.spend("run"), ledger.spend("run"):
        clock.now += 5
    assert totals(ledger) == {"run": 5}


def test_a_running_block_is_in_the_total(clock: FakeClock) -> None:
    ledger = Ledger(clock)
    with ledger.spend("ncu"):
        clock.now += 4
        assert ledger.total("ncu") == 4
        clock.now += 4
    assert totals(ledger) == {"ncu": 8}


def test_a_block_that_raises_is_closed(clock: FakeClock) -> None:
    ledger = Ledger(clock)

    def fails() -> None:
        with ledger.spend("check"):
            clock.now += 2
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    clock.now += 1
    assert totals(ledger) == {"check": 2, "engine": 1}


Step = tuple[Account | None, int]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*ACCOUNTS, None]), st.integers(0, 9)), max_size=20))
def test_all_accounts_together_are_the_session(steps: list[Step]) -> None:
    """An account opens a block, None closes one."""
    clock = FakeClock()
    ledger = Ledger(clock)
    blocks = []
    for account, seconds in steps:
        if account is not None:
            blocks.append(ledger.spend(account))
            blocks[-1].__enter__()
        elif blocks:
            blocks.pop().__exit__(None, None, None)
        clock.now += seconds
    assert sum(ledger.total(account) for account in ACCOUNTS) == sum(seconds for _account, seconds in steps)
