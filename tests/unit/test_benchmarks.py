"""The benchmarks run; their figures are for people and are not checked here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tachyon_tui.engine.ledger import Ledger
from tests.benchmarks import journal, rounds, start_up
from tests.benchmarks.__main__ import BENCHMARKS, main
from tests.benchmarks.fake_agent import ROUNDS
from tests.benchmarks.figure import Figure
from tests.benchmarks.waiting import process_clock

QUICK = [kind for kind in ROUNDS if kind.name == "no effect"]


@pytest.mark.parametrize(
    ("benchmark", "sizes"),
    [
        (start_up.help_text, {"times": 1}),
        (start_up.report, {"times": 1}),
        (journal.appended, {"count": 5}),
        (journal.folded, {"count": 300}),
        (journal.idle, {"seconds": 0.05}),
        (rounds.engine, {"cycles": 1, "kinds": QUICK}),
    ],
)
def test_each_gives_figures(benchmark: Callable[..., Sequence[Figure]], sizes: dict[str, Any]) -> None:
    for figure in benchmark(**sizes):
        assert figure.measured >= 0 or figure.unit == "MiB"
        assert f"{figure.name}: " in figure.line()
        assert figure.kept or not figure.name.endswith("imports")


def test_memory_is_looked_at_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([50.0, 60.0, 70.0, 71.5])
    monkeypatch.setattr(rounds, "resident_mib", lambda: next(sizes))
    monkeypatch.setattr(
        rounds, "play", lambda count, look, _kinds: [look(Ledger()) for _round in range(count)]
    )
    [figure] = rounds.memory(rounds=4)
    assert figure.measured == 11.5
    assert "50.0 MiB at the first round, 60.0 MiB after 1, 71.5 MiB at the end" in figure.line()


@pytest.mark.parametrize(("measured", "word"), [(2.0, "ok"), (2.1, "OVER")])
def test_a_line_holds_figure_and_bound(measured: float, word: str) -> None:
    line = Figure("waiting", measured, 2.0, "%", "for a build").line()
    assert line.split() == [word, "waiting:", str(measured)[:3].removesuffix(".0"), "%", "(at", "most", "2", "%);",
                            "for", "a", "build"]  # fmt: skip


@pytest.mark.parametrize(("bound", "code"), [(1.0, 0), (0.5, 1)])
def test_the_exit_code_tells_whether_the_bounds_are_kept(
    bound: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BENCHMARKS, "one", lambda: [Figure("one", 1.0, bound, "s")])
    assert main(["one"]) == code
    assert "one: 1 s" in capsys.readouterr().out


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed"]) == 2
    assert "engine" in capsys.readouterr().err


def test_the_clock_of_another_process_is_its_processor_time() -> None:
    clock = process_clock(os.getpid())
    before, now, after = time.process_time(), clock(), time.process_time()
    assert before <= now <= after
    with pytest.raises(OSError, match="process"):
        process_clock(2**22 + 1)
