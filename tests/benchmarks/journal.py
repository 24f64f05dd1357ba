"""The journal: writing an event, folding a long one, following it."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tachyon_tui.core import events as e
from tachyon_tui.core.session import Journal, JournalReader, SessionPaths
from tachyon_tui.core.states import IterationState as S
from tachyon_tui.core.view import SessionView, fold
from tachyon_tui.frontends.follow import follow
from tests.benchmarks.figure import Figure
from tests.benchmarks.rounds import resident_mib
from tests.support import started, write

FOLD_SECONDS = 3.0
GROWTH_MIB = 4.0
"""Resident growth of a reader while it follows; the journal itself is several times as long."""
IDLE_PERCENT = 2.0
APPEND_MS = 1.0
"""The engine writes text at most ten times a second: this is 1 % of one core."""
STATES = (S.PENDING, S.HYPOTHESIS, S.EDITING, S.COMPILING, S.RUNNING, S.PROFILING, S.ROLLED_BACK)
SOURCE = "    out[blockIdx.x] = sum;  // one row a block, no atomics\n"
STEPS = 150
"""Tool calls a made-up round; with their text some 1,000 events."""


def session_events() -> Iterator[Any]:
    """A session without end, as an agent that talks and calls a lot would leave it."""
    yield started()
    number = 0
    while True:
        yield e.RoundStarted(round=number)
        for before, after in pairwise(STATES[:-1]):
            yield e.StateChanged(round=number, before=before, after=after)
        for step in range(STEPS):
            call = f"{number}.{step}"
            yield from (e.AgentText(round=number, text=f"Step {step}: {SOURCE}") for _piece in range(3))
            yield e.ToolCalled(round=number, call=call, tool="get_kernel_summary", arguments="{}")
            yield e.ToolFinished(
                round=number, call=call, tool="get_kernel_summary", ok=True, text=SOURCE * 20, seconds=0.1
            )
            yield e.Usage(prompt_tokens=9000, completion_tokens=300, total_tokens=9300 * step)
        for _run in range(8):
            yield e.Progress(what="run", round=number)
            yield e.GpuSampled(name="one GPU", sm_clock_mhz=1980, temperature_c=41, power_w=212.5)
            yield e.RunFinished(round=number, who="candidate", ok=True, exit_code=0, seconds=0.3, ms=110.5)
        yield e.StateChanged(round=number, before=S.PROFILING, after=S.ROLLED_BACK, reason="not faster")
        yield e.RoundFinished(round=number, state=S.ROLLED_BACK, reason="not faster", base_ms=110.5, ms=110.6)
        number += 1


def folded(count: int = 100_000) -> list[Figure]:
    """Fold a journal of ``count`` events from its file, and what the reader grew from a fifth of it to its end."""
    with tempfile.TemporaryDirectory() as folder:
        paths = SessionPaths(Path(folder))
        write(paths, islice(session_events(), count))
        size = paths.journal.stat().st_size / 2**20
        early, seconds = 0.0, 0.0
        view = SessionView()
        gc.collect()
        begun = time.perf_counter()
        for number, event in enumerate(JournalReader(paths).events()):
            view = fold(view, event)
            if number == count // 5:
                seconds += time.perf_counter() - begun
                gc.collect()
                early = resident_mib()
                begun = time.perf_counter()
        seconds += time.perf_counter() - begun
        gc.collect()
        late = resident_mib()
    assert view.seq == count
    return [
        Figure(
            f"fold of {count} events",
            seconds,
            FOLD_SECONDS,
            "s",
            f"{size:.1f} MiB, {len(view.rounds)} rounds, {seconds / count * 1e6:.0f} µs an event",
        ),
        Figure(
            f"memory while {count} events are followed",
            late - early,
            GROWTH_MIB,
            "MiB",
            f"{early:.1f} MiB after a fifth, {late:.1f} MiB at the end",
        ),
    ]


def appended(count: int = 500) -> list[Figure]:
    """Append an event of 8 KB of text, with the redaction of secrets."""
    event = e.AgentText(round=0, text=(SOURCE * 200)[:8192])
    times = []
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(SessionPaths(Path(folder)))
        for _time in range(count):
            begun = time.perf_counter()
            journal.append(event)
            times.append((time.perf_counter() - begun) * 1000)
        journal.close()
    worst = sorted(times)[int(len(times) * 0.99)]
    return [
        Figure("append of 8 KB of text", median(times), APPEND_MS, "ms", f"99 in 100 below {worst:.2f} ms")
    ]


class _Silent:
    """A reporter that shows nothing."""

    def event(self, event: Any, view: SessionView) -> None: ...

    def failed(self, error: Exception) -> None:
        raise error


def idle(seconds: float = 3.0) -> list[Figure]:
    """Follow a journal to which nothing is added."""
    with tempfile.TemporaryDirectory() as folder:
        paths = SessionPaths(Path(folder))
        write(paths, islice(session_events(), 1000))
        ended = threading.Event()
        thread = threading.Thread(target=follow, args=(paths, _Silent(), ended))
        thread.start()
        never = threading.Event()
        never.wait(seconds / 5)
        cpu, begun = time.process_time(), time.perf_counter()
        never.wait(seconds)
        share = (time.process_time() - cpu) / (time.perf_counter() - begun) * 100
        ended.set()
        thread.join(10)
    return [Figure("following a silent session", share, IDLE_PERCENT, "% of one core")]
