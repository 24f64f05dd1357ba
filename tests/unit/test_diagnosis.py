"""Which launches are worth an ncu run, and what is recorded of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import session

from tachyon_tui.core import events as e
from tachyon_tui.core.launches import Launch, LaunchKey, RunRecord
from tachyon_tui.core.profile import Floor, KernelProfile, Metric, Report
from tachyon_tui.core.session import Journal
from tachyon_tui.engine.charge import Scope
from tachyon_tui.engine.diagnosis import Diagnosis, choose_launches, floor_ms_per_run
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.log import EventLog
from tachyon_tui.profilers.base import ChildEnd, DiagnosisOutcome, Progress, RunChild, Wanted

GRID, BLOCK = (64, 1, 1), (128, 1, 1)


def key(name: str, grid: tuple[int, int, int] = GRID) -> LaunchKey:
    return LaunchKey(f"{name}(float*)", grid, BLOCK)


def run(*work: tuple[str, int] | tuple[str, int, tuple[int, int, int]]) -> RunRecord:
    """Launches one after the other, each (name, ns) and perhaps a grid."""
    launches, clock = [], 0
    for item in work:
        name, ns, grid = item if len(item) == 3 else (*item, GRID)
        launches.append(Launch(key(name, grid), f"_Z{name}", clock, clock + ns))
        clock += ns + 10
    return RunRecord("cupti", tuple(launches))


ALL = Scope("")


def names(wanted: Sequence[Wanted]) -> list[str]:
    return [w.mangled.removeprefix("_Z") for w in wanted]


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"a": 100}, ["a"]),
        ({"a": 90, "b": 10}, ["a"]),
        ({"a": 89, "b": 11}, ["a", "b"]),
        ({"b": 10, "a": 90}, ["a"]),
        ({"a": 50, "b": 30, "c": 10, "d": 6, "e": 4}, ["a", "b", "c"]),
        ({f"k{n}": 100 for n in range(9)}, ["k0", "k1", "k2", "k3", "k4"]),
        ({}, []),
    ],
)
def test_ninety_percent_of_target_time_and_at_most_five(times: dict[str, int], chosen: list[str]) -> None:
    assert names(choose_launches(run(*times.items()), ALL)) == chosen


@pytest.mark.parametrize(
    ("times", "index"), [([7], 0), ([5, 9], 0), ([9, 5], 1), ([50, 7, 9], 2), ([8, 1, 2, 9, 5], 4)]
)
def test_the_launch_of_median_duration(times: list[int], index: int) -> None:
    """Of an even number the lower of the two in the middle; a first, cold launch is not taken for the rule."""
    assert choose_launches(run(*(("a", ns) for ns in times)), ALL) == (Wanted("_Za", index),)


def test_a_launch_is_counted_in_the_order_of_time_among_its_kernel_s() -> None:
    record = run(("a", 9), ("b", 100), ("a", 5), ("b", 1), ("a", 7))
    shuffled = RunRecord("cupti", tuple(reversed(record.launches)))
    assert choose_launches(shuffled, ALL) == (Wanted("_Zb", 1), Wanted("_Za", 2))


def test_outside_kernels_are_never_chosen() -> None:
    scope = Scope("reduce", outside={key("fill"): (1, 1), key("check"): (1, 2)})
    record = run(("fill", 900), ("reduce", 10), ("check", 500), ("helper", 5))
    assert names(choose_launches(record, scope)) == ["reduce", "helper"]
    assert choose_launches(run(("fill", 900)), scope) == ()


def test_of_a_kernel_launched_inside_and_outside_the_set_only_the_charged_launches_count() -> None:
    """The index is ncu's: it counts every launch of the kernel."""
    scope = Scope("reduce", outside={key("fill"): (2, 2)})
    record = run(("fill", 900), ("fill", 20, (1, 1, 1)), ("reduce", 30), ("fill", 900))
    assert choose_launches(record, scope) == (Wanted("_Zreduce", 0), Wanted("_Zfill", 1))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 1000)), max_size=40),
    st.sets(st.sampled_from("abcdefgh")),
)
def test_the_fewest_kernels_that_reach_the_share(work: list[tuple[str, int]], outside: set[str]) -> None:
    scope = Scope("", outside={key(name): (1, 99) for name in outside})
    chosen = names(choose_launches(run(*work), scope))
    totals = {name: sum(ns for n, ns in work if n == name) for name, _ns in work if name not in outside}
    share = sum(totals[name] for name in chosen)
    everything = sum(totals.values())
    assert len(chosen) <= 5
    assert len(set(chosen)) == len(chosen)
    assert not outside & set(chosen)
    assert share >= 0.9 * everything or len(chosen) == min(5, len(totals))
    if chosen:
        assert share - totals[chosen[-1]] < 0.9 * everything
        assert min(totals[name] for name in chosen) >= max(
            [ns for name, ns in totals.items() if name not in chosen], default=0
        )


# -- the record of a diagnosis ------------------------------------------------------------------------------


@dataclass
class FakeNcu:
    """Answers in place of ncu."""

    answers: list[DiagnosisOutcome]
    folders: list[Path] = field(default_factory=list)

    def diagnose(
        self, argv: Sequence[str], wanted: Sequence[Wanted], output: Path, run: RunChild, progress: Progress
    ) -> DiagnosisOutcome:
        assert output.is_dir()
        self.folders.append(output)
        progress("pass 1", 0.5)
        return self.answers.pop(0)


def no_child(argv: Sequence[str], env: Mapping[str, str], timeout: float, output: Path) -> ChildEnd:
    raise AssertionError("no child is started here")


def with_floor(profile: KernelProfile) -> KernelProfile:
    return profile.model_copy(update={"floor": Floor(ms=0.1, binding="memory", terms=())})


OK = DiagnosisOutcome("ok", Report(path="r", kernels=(KernelProfile(name="k()"),)), passes=40, seconds=3.0)
DENIED = DiagnosisOutcome("permission", message="no permission", fix="ask your administrator")


class Desk:
    def __init__(self, folder: Path) -> None:
        self.paths = session(folder)
        self.journal = Journal(self.paths)
        self.events: list[Any] = []
        self.journal.listen(self.events.append)

    def diagnosis(self, *answers: DiagnosisOutcome) -> tuple[Diagnosis, FakeNcu]:
        ncu = FakeNcu(list(answers))
        log, folder = EventLog(self.journal), self.paths.reports
        return Diagnosis(ncu, log, Ledger(), folder, no_child, with_floor), ncu

    def found(self) -> list[e.Diagnosed]:
        return [event for event in self.events if event.type == "diagnosed"]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.journal.close()


WANTED = [Wanted("_Zk", 0)]


def test_a_diagnosis_is_recorded_with_its_floor_and_its_report(desk: Desk) -> None:
    diagnosis, ncu = desk.diagnosis(OK, OK)
    assert diagnosis.diagnose(["./app"], WANTED, "baseline", None) == OK
    diagnosis.diagnose(["./app"], WANTED, "candidate", 4)
    first, second = desk.found()
    assert (first.status, first.who, first.round, first.passes) == ("ok", "baseline", None, 40)
    assert (second.who, second.round) == ("candidate", 4)
    assert [kernel.floor is not None for kernel in first.kernels] == [True]
    assert [desk.paths.folder / event.report for event in (first, second)] == ncu.folders
    assert first.report != second.report
    assert "progress" in [event.type for event in desk.events]


def test_the_same_fix_is_shown_once(desk: Desk) -> None:
    diagnosis, _ncu = desk.diagnosis(DENIED, DENIED, OK)
    for _try in range(3):
        diagnosis.diagnose(["./app"], WANTED, "candidate", 1)
    assert [(event.status, event.fix) for event in desk.found()] == [
        ("permission", "ask your administrator"),
        ("permission", ""),
        ("ok", ""),
    ]


def test_nothing_to_diagnose_with_or_nothing_wanted(desk: Desk) -> None:
    diagnosis, _ncu = desk.diagnosis(OK)
    assert diagnosis.diagnose(["./app"], [], "best", 1) is None
    diagnosis.give_up()
    assert diagnosis.diagnose(["./app"], WANTED, "best", 1) is None
    assert desk.events == []


@pytest.mark.parametrize("gives_up", [True, False])
def test_available_until_it_gives_up(desk: Desk, gives_up: bool) -> None:
    diagnosis, _ncu = desk.diagnosis()
    if gives_up:
        diagnosis.give_up()
    assert diagnosis.available is not gives_up


def test_an_existing_report_is_the_baseline_s_diagnosis(desk: Desk, tmp_path: Path) -> None:
    diagnosis, _ncu = desk.diagnosis()
    assert OK.report is not None
    kernels = diagnosis.adopt(OK.report, tmp_path / "old.ncu-rep")
    [event] = desk.found()
    assert (event.who, event.kernels) == ("baseline", kernels)
    assert "not compared" in event.message
    assert "old.ncu-rep" in event.message


@pytest.mark.parametrize(
    ("peaks", "given_bytes", "ms"),
    [
        ([4.8e12], 4.8e9, 1.0),
        ([None, 4.8e12], 4.8e9, 1.0),
        ([0.0, float("nan"), float("inf"), 2e12], 4e9, 2.0),
        ([4.8e12], None, None),
        ([None], 4.8e9, None),
        ([], 4.8e9, None),
    ],
)
def test_floor_of_the_given_bytes(
    peaks: list[float | None], given_bytes: float | None, ms: float | None
) -> None:
    profiles = [
        KernelProfile(name="k()", metrics={"dram_peak": Metric(key="dram_peak", label="", value=peak)})
        for peak in peaks
    ]
    found = floor_ms_per_run([KernelProfile(name="bare()"), *profiles], given_bytes)
    assert found == (pytest.approx(ms) if ms is not None else None)
