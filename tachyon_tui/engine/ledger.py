"""Where the session's time goes, each second counted once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Account = Literal["engine", "build", "run", "ncu", "check", "model", "person"]


class Ledger:
    """A stack of accounts: time goes to the innermost one, so nested work is not counted twice."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stack: list[Account] = ["engine"]
        self._since = clock()
        self._totals: defaultdict[Account, float] = defaultdict(float)

    @contextmanager
    def spend(self, account: Account) -> Iterator[None]:
        """Charge the time of this block to ``account``."""
        self._settle()
        self._stack.append(account)
        try:
            yield
        finally:
            self._settle()
            self._stack.pop()

    def total(self, account: Account) -> float:
        """Seconds charged to the account so far."""
        self._settle()
        return self._totals[account]

    def _settle(self) -> None:
        now = self._clock()
        self._totals[self._stack[-1]] += now - self._since
        self._since = now
