"""What a round costs beyond the user's programs, and the engine's memory over many rounds."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tachyon_tui.core import events as e
from tachyon_tui.core.session import JournalReader
from tachyon_tui.core.settings import load_settings
from tachyon_tui.core.states import IterationState
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.start import Request, start_session
from tests.benchmarks.fake_agent import ROUNDS, FakeAgent, Kind
from tests.benchmarks.figure import Figure
from tests.engine.lab import Lab

ENGINE_MS = 100.0
"""The engine itself may take this long a round."""
GROWTH_MIB = 8.0
"""How much an engine may grow over its rounds."""
OPTIONS: Mapping[str, Any] = {
    "llm.provider": "openai",
    "llm.model": "fake-model",
    "convergence.patience": 0,
    "convergence.min_gain": 0.0,
}


@dataclass(frozen=True)
class Mark:
    """The clocks at the start of a round, in s."""

    wall: float
    account: float
    """What the engine's ledger has under its own name."""
    ncu: float
    cpu: float


@dataclass(frozen=True)
class Cost:
    """What one round took, in ms."""

    engine: float
    """Wall time in which neither the user's programs nor ncu ran: with starting, watching and ending them."""
    account: float
    cpu: float


def play(rounds: int, at_round: Callable[[Ledger], None], kinds: Sequence[Kind]) -> list[Any]:
    """One session in this process on the fake GPU, with an agent that takes no time; its events."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        lab = Lab(Path(folder))
        for name, value in lab.env.items():
            patch.setenv(name, value)
        lab.write_config()
        ledger = Ledger()
        patch.setattr("tachyon_tui.engine.loop.Ledger", lambda: ledger)
        settings = load_settings(lab.root, options={**OPTIONS, "max_iterations": rounds})
        request = Request(settings, "./app", (), lab.root, lab.root)
        session = start_session(request, FakeAgent(lab.root, lambda: at_round(ledger), kinds))
        session.run()
        events = list(JournalReader(session.paths).events())
    ends = [event.state is IterationState.SUCCESS for event in events if isinstance(event, e.RoundFinished)]
    assert ends == [kinds[number % len(kinds)].accepted for number in range(rounds)], events[-1]
    return events


def engine(cycles: int = 3, kinds: Sequence[Kind] = ROUNDS) -> list[Figure]:
    """Engine time a round, the mean of all kinds of round; of each the least of its repetitions, as another load on
    the machine only adds."""
    marks: list[Mark] = []

    def mark(ledger: Ledger) -> None:
        marks.append(
            Mark(time.perf_counter(), ledger.total("engine"), ledger.total("ncu"), time.process_time())
        )

    events = play(len(kinds) * cycles + 1, mark, kinds)
    programs = defaultdict[int | None, float](float)
    runs = 0
    for event in events:
        if isinstance(event, e.RunFinished | e.BuildFinished):
            programs[event.round] += event.seconds
            runs += isinstance(event, e.RunFinished) and event.round is not None
    costs = [
        Cost(
            (b.wall - a.wall - (b.ncu - a.ncu) - programs[number]) * 1000,
            (b.account - a.account) * 1000,
            (b.cpu - a.cpu) * 1000,
        )
        for number, (a, b) in enumerate(pairwise(marks))
    ]
    by_kind = [costs[index :: len(kinds)] for index in range(len(kinds))]
    engine_ms, account_ms, cpu_ms = (
        mean(min(getattr(cost, name) for cost in same) for same in by_kind)
        for name in ("engine", "account", "cpu")
    )
    each = (
        f"{kind.name} {min(c.engine for c in same):.0f}" for kind, same in zip(kinds, by_kind, strict=True)
    )
    return [
        Figure(
            "engine time a round",
            engine_ms,
            ENGINE_MS,
            "ms",
            f"{account_ms:.1f} ms of it in its own account, the rest starts, watches and ends programs; "
            f"CPU {cpu_ms:.1f} ms, {runs / len(marks):.1f} timed runs a round; {', '.join(each)}",
        )
    ]


def memory(rounds: int = 30, kinds: Sequence[Kind] = ROUNDS) -> list[Figure]:
    """Resident growth of the engine's process from a third of the rounds to the last one."""
    sizes: list[float] = []

    def look(_ledger: Ledger) -> None:
        gc.collect()
        sizes.append(resident_mib())

    play(rounds, look, kinds)
    early = sizes[rounds // 3]
    return [
        Figure(
            f"memory of the engine over {rounds} rounds",
            sizes[-1] - early,
            GROWTH_MIB,
            "MiB",
            f"{sizes[0]:.1f} MiB at the first round, {early:.1f} MiB after {rounds // 3}, "
            f"{sizes[-1]:.1f} MiB at the end",
        )
    ]


def resident_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
