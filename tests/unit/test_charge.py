"""What is charged to a candidate, what is named, and what an audit finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachyon_tui.core.launches import Launch, LaunchKey, RunRecord, Transfer, busy_ns
from tachyon_tui.engine.charge import Audit, Charged, CountsDiffer, Scope, audit, growth, learn_scope

MS = 1_000_000
GRID, BLOCK = (256, 1, 1), (128, 1, 1)
REDUCE = LaunchKey("reduce_kernel(float const*, float*, int)", GRID, BLOCK)
FILL = LaunchKey("fill(float*, int)", GRID, BLOCK)
CHECK = LaunchKey("check(float const*)", (1, 1, 1), BLOCK)


def launch(key: LaunchKey, start_ms: float, ms: float, stream: int = 0) -> Launch:
    start = round(start_ms * MS)
    return Launch(key, key.name.split("(")[0], start, start + round(ms * MS), stream=stream)


def record(*launches: Launch, transfers: Sequence[Transfer] = ()) -> RunRecord:
    return RunRecord("cupti", tuple(launches), tuple(transfers))


def in_turn(*work: tuple[LaunchKey, float]) -> RunRecord:
    """Launches one after the other, each (key, ms)."""
    launches, clock = [], 0.0
    for key, ms in work:
        launches.append(launch(key, clock, ms))
        clock += ms + 0.1
    return record(*launches)


COPIES = (Transfer("DtoH", 1, 4096, 2 * MS), Transfer("HtoD", 2, 8192, 4 * MS))
BASELINE = replace(in_turn((FILL, 1.0), (REDUCE, 10.0), (CHECK, 0.5)), transfers=COPIES)


def scope(*records: RunRecord, per: str = "run", text: str = "reduce") -> Scope:
    assert per in ("run", "launch")
    return learn_scope(records or (BASELINE, BASELINE), text, "run" if per == "run" else "launch")


def with_copies(*transfers: Transfer) -> RunRecord:
    return replace(BASELINE, transfers=transfers)


# -- the target time ----------------------------------------------------------------------------------------


def test_the_baseline_is_charged_its_target_kernels_alone() -> None:
    charged = scope().charge(BASELINE)
    assert (charged.ms, charged.sum_ms, charged.targets) == (10.0, 10.0, 1)
    assert charged.outside_ms == {FILL: 1.0, CHECK: 0.5}
    assert charged.launches == {FILL: 1, REDUCE: 1, CHECK: 1}
    assert (charged.more, charged.less) == ((), ())
    assert [(k.name, k.count, k.ms, k.target) for k in charged.kernels] == [
        (REDUCE.name, 1, 10.0, True),
        (FILL.name, 1, 1.0, False),
        (CHECK.name, 1, 0.5, False),
    ]


def test_all_kernels_are_the_target_where_none_is_named() -> None:
    assert scope(text="").charge(BASELINE).ms == pytest.approx(11.5)


def test_busy_time_is_the_union_and_the_sum_is_kept_beside_it() -> None:
    both = record(launch(REDUCE, 0, 6, stream=1), launch(REDUCE, 4, 6, stream=2), launch(REDUCE, 20, 1))
    charged = scope(both).charge(both)
    assert (charged.ms, charged.sum_ms, charged.targets) == (11.0, 13.0, 3)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@settings(deadline=None)
@given(intervals)
def test_busy_time_against_counting_each_ns(spans: list[tuple[int, int]]) -> None:
    pairs = [(start, start + length) for start, length in spans]
    assert busy_ns(pairs) == len({ns for start, end in pairs for ns in range(start, end)})


@settings(deadline=None)
@given(intervals)
def test_busy_time_lies_between_the_longest_and_the_sum(spans: list[tuple[int, int]]) -> None:
    pairs = [(start, start + length) for start, length in spans]
    lengths = [length for _start, length in spans]
    assert max(lengths, default=0) <= busy_ns(pairs) <= sum(lengths)


@pytest.mark.parametrize(
    ("name", "work", "ms"),
    [
        ("renamed", [(FILL, 1.0), (LaunchKey("fast(float*)", GRID, BLOCK), 7.0), (CHECK, 0.5)], 7.0),
        (
            "split",
            [
                (FILL, 1.0),
                (REDUCE, 3.0),
                (LaunchKey("second_pass(float*)", (1, 1, 1), BLOCK), 2.0),
                (CHECK, 0.5),
            ],
            5.0,
        ),
        ("another grid of a known kernel", [(FILL._replace(grid=(1, 1, 1)), 8.0), (CHECK, 0.5)], 8.0),
        ("another block of a known kernel", [(FILL._replace(block=(64, 1, 1)), 8.0), (CHECK, 0.5)], 8.0),
        ("another instance of a known name", [(FILL._replace(name="fill<4>(float*, int)"), 8.0)], 8.0),
        ("a known kernel once more", [(FILL, 1.0), (REDUCE, 2.0), (FILL, 3.0), (CHECK, 0.5)], 5.0),
    ],
)
def test_work_that_the_baseline_did_not_do_is_charged(
    name: str, work: list[tuple[LaunchKey, float]], ms: float
) -> None:
    assert scope().charge(in_turn(*work)).ms == pytest.approx(ms), name


def test_a_target_kernel_with_another_launch_shape_is_still_a_target() -> None:
    charged = scope().charge(in_turn((FILL, 1.0), (REDUCE._replace(grid=(8, 8, 1)), 3.0), (CHECK, 0.5)))
    assert (charged.ms, charged.targets) == (3.0, 1)


def test_extra_launches_are_named_and_the_latest_ones_are_charged() -> None:
    run = record(launch(FILL, 9, 4), launch(FILL, 0, 1), launch(REDUCE, 2, 5), launch(CHECK, 14, 0.5))
    charged = scope().charge(replace(run, transfers=COPIES))
    assert charged.ms == pytest.approx(9.0)
    assert charged.outside_ms[FILL] == pytest.approx(1.0)
    assert len(charged.more) == 1
    assert "fill" in charged.more[0]
    assert "2 times" in charged.more[0]


def test_fewer_launches_are_named() -> None:
    charged = scope().charge(replace(in_turn((FILL, 1.0), (REDUCE, 10.0)), transfers=COPIES))
    assert charged.ms == 10.0
    assert [("check" in text, "0 times" in text) for text in charged.less] == [(True, True)]


def test_the_baseline_s_own_range_of_counts_is_free() -> None:
    """Outside the target a baseline may vary: what one of its runs did is known."""
    once = in_turn((FILL, 1.0), (REDUCE, 10.0))
    thrice = in_turn((FILL, 1.0), (FILL, 1.0), (FILL, 1.0), (REDUCE, 10.0), (CHECK, 0.5))
    learned = scope(once, thrice)
    for run in (once, thrice):
        charged = learned.charge(run)
        assert (charged.ms, charged.more, charged.less) == (10.0, (), ())


@pytest.mark.parametrize(
    ("copies", "more_ms", "more", "less"),
    [
        (COPIES, 0.0, 0, 0),
        ((COPIES[0], Transfer("HtoD", 3, 8192, 5 * MS)), 1.0, 1, 0),
        ((COPIES[0], Transfer("HtoD", 2, 9000, 7 * MS)), 3.0, 1, 0),
        ((COPIES[0], Transfer("HtoD", 3, 9000, 3 * MS)), 0.0, 1, 0),
        ((*COPIES, Transfer("memset", 1, 64, 2 * MS)), 2.0, 1, 0),
        ((COPIES[0], Transfer("HtoD", 1, 8192, 4 * MS)), 0.0, 0, 1),
        ((COPIES[0], Transfer("HtoD", 2, 8000, 4 * MS)), 0.0, 0, 1),
        ((COPIES[0], Transfer("HtoD", 1, 9000, 5 * MS)), 1.0, 1, 1),
        ((COPIES[0],), 0.0, 0, 1),
        ((), 0.0, 0, 2),
    ],
)
def test_copies_are_compared_exactly(
    copies: tuple[Transfer, ...], more_ms: float, more: int, less: int
) -> None:
    charged = scope().charge(with_copies(*copies))
    assert charged.ms == pytest.approx(10.0 + more_ms)
    assert charged.sum_ms == pytest.approx(10.0 + more_ms)
    assert (len(charged.more), len(charged.less)) == (more, less)


def test_a_copy_that_takes_longer_with_the_same_bytes_is_not_more_work() -> None:
    charged = scope().charge(with_copies(COPIES[0], Transfer("HtoD", 2, 8192, 9 * MS)))
    assert (charged.ms, charged.more) == (10.0, ())


def test_before_the_calibration_nothing_is_known_to_be_more() -> None:
    charged = Scope("reduce", learned=False).charge(BASELINE)
    assert charged.ms == pytest.approx(11.5)
    assert (charged.more, charged.less) == ((), ())


def test_the_stopwatch_s_time_is_taken_as_it_is() -> None:
    charged = scope().charge(RunRecord("stopwatch", value_ms=12.5))
    assert (charged.ms, charged.sum_ms, charged.targets) == (12.5, 12.5, 1)


def test_a_run_without_any_kernel_is_charged_nothing() -> None:
    charged = scope().charge(record())
    assert (charged.ms, charged.targets, charged.kernels) == (0.0, 0, ())


# -- counts that vary, and the mean per launch --------------------------------------------------------------


def budgeted(launches: int, ms: float, *, first: float | None = None, fill_ms: float = 1.0) -> RunRecord:
    """A benchmark that repeats fill, reduce and a copy back for as long as its time allows."""
    work = []
    for n in range(launches):
        work += [(FILL, fill_ms), (REDUCE, first if first is not None and n == 0 else ms)]
    copy = Transfer("DtoH", launches, 4096 * launches, launches * MS // 10)
    return replace(in_turn(*work), transfers=(copy,))


def test_target_counts_that_differ_ask_for_the_mean_per_launch() -> None:
    with pytest.raises(CountsDiffer) as caught:
        learn_scope([budgeted(5, 2.0), budgeted(6, 2.0), budgeted(5, 2.0)], "reduce", "run")
    assert caught.value.counts == (5, 6, 5)


def test_counts_of_other_kernels_may_differ() -> None:
    assert scope(in_turn((FILL, 1), (REDUCE, 1)), in_turn((REDUCE, 1))).outside == {FILL: (0, 1)}


def test_mean_per_launch_after_the_first() -> None:
    learned = scope(budgeted(5, 2.0), budgeted(6, 2.0), per="launch")
    charged = learned.charge(budgeted(7, 2.0, first=50.0))
    assert (charged.ms, charged.sum_ms, charged.targets) == (2.0, 2.0, 7)
    assert learned.charge(in_turn((REDUCE, 3.0))).ms == 3.0


@pytest.mark.parametrize("launches", [3, 5, 20])
def test_per_launch_the_numbers_of_known_launches_and_copies_are_free(launches: int) -> None:
    """A faster candidate gets through more of everything: that is no work beyond the baseline's."""
    learned = scope(budgeted(5, 2.0), budgeted(6, 2.0), per="launch")
    charged = learned.charge(budgeted(launches, 1.0))
    assert charged.ms == pytest.approx(1.0)
    assert (charged.more, charged.less) == ((), ())
    assert charged.outside_ms[FILL] == pytest.approx(1.0)
    assert sum(charged.outside_ms.values()) == pytest.approx(1.1)


def test_per_launch_unknown_copies_and_missing_work_are_seen() -> None:
    learned = scope(budgeted(5, 2.0), budgeted(6, 2.0), per="launch")
    run = replace(in_turn((REDUCE, 1.0), (REDUCE, 1.0)), transfers=(Transfer("DtoD", 2, 64, 2 * MS),))
    charged = learned.charge(run)
    assert charged.ms == pytest.approx(2.0)
    assert (len(charged.more), len(charged.less)) == (1, 2)


def named(name: str) -> LaunchKey:
    return REDUCE._replace(name=name)


def test_per_launch_a_split_or_padded_kernel_gains_nothing() -> None:
    learned = scope(budgeted(5, 2.0), budgeted(6, 2.0), per="launch")
    half = named("reduce_rest(int)")
    split = learned.charge(in_turn(*[(REDUCE, 1.0), (half, 1.0)] * 6))
    assert split.ms == pytest.approx(2.0, rel=0.2)
    assert split.ms >= 2.0
    padded = learned.charge(in_turn(*[(REDUCE, 2.0), (half, 0.0001), (half, 0.0001)] * 6))
    assert padded.ms >= 2.0
    renamed = learned.charge(in_turn(*[(half, 1.0)] * 6))
    assert any("not launched any more" in text for text in renamed.less)


def test_a_target_kernel_launched_less_often_is_named() -> None:
    learned = scope(*[in_turn(*[(REDUCE, 1.0)] * 5)] * 3)
    assert learned.charge(in_turn(*[(REDUCE, 1.0)] * 5)).less == ()
    assert "4 times" in learned.charge(in_turn(*[(REDUCE, 1.0)] * 4)).less[0]
    templated = named("void reduce_kernel<4>(float const*, float*, int)")
    assert learned.charge(in_turn(*[(templated, 1.0)] * 5)).less == ()
    assert learned.charge(in_turn((named("fused(int)"), 1.0))).less == ()


def test_per_launch_time_moved_to_a_known_kernel_is_found() -> None:
    learned = scope(budgeted(5, 2.0), budgeted(6, 2.0), per="launch")
    before = [learned.charge(budgeted(n, 2.0)) for n in (5, 6, 5, 6)]
    after = [learned.charge(budgeted(n, 1.0, fill_ms=1.9)) for n in (7, 6, 7)]
    assert "fill" in audit(before, after, [1.0], [1.0], 1.0).reason
    honest = [learned.charge(budgeted(n, 1.0)) for n in (9, 10, 9)]
    assert audit(before, honest, [1.0], [1.0], 1.0) == Audit()


# -- growth -------------------------------------------------------------------------------------------------


def test_growth_of_known_numbers() -> None:
    """Equal variances 2.5, five runs each: 4.501 (8 degrees of freedom, 0.1 %) times 1 is not sure of 4."""
    before, after = [1.0, 2, 3, 4, 5], [11.0, 12, 13, 14, 15]
    assert growth(before, after) == pytest.approx(10 - 4.501 * sqrt(2.5) * sqrt(2 / 5), abs=1e-3)
    assert growth(before, [x + 4 for x in before]) == 0
    assert growth(before, [x + 5 for x in before]) > 0


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [([1.0], [9.0, 9.0], 0.0), ([], [], 0.0), ([1.0, 1.0], [1.5, 1.5], 0.5), ([2.0, 2.0], [1.0, 1.0], 0.0)],
)
def test_growth_without_evidence_or_without_noise(
    before: list[float], after: list[float], expected: float
) -> None:
    assert growth(before, after) == pytest.approx(expected)


def test_growth_is_sure_to_one_in_a_thousand() -> None:
    noise = random.Random(3)
    tries = 4000
    found = 0
    for _try in range(tries):
        before, after = ([noise.gauss(10, 1) for _ in range(5)] for _side in range(2))
        found += growth(before, after) > 0
    assert found <= 12


# -- the audit ----------------------------------------------------------------------------------------------

Outside = dict[LaunchKey, float]


def runs(count: int, make: Callable[[], Outside]) -> list[Charged]:
    return [Charged(10.0, 10.0, make(), {}, (), 1) for _ in range(count)]


def steady(fill: float, check: float = 0.5) -> list[Charged]:
    """Runs with a little noise of their own."""
    wobble = iter((0.999, 1.0, 1.001, 1.0, 0.999))
    return runs(5, lambda: {FILL: fill * next(wobble), CHECK: check})


def test_nothing_moved() -> None:
    assert audit(steady(1.0), steady(1.0), [1.0] * 5, [1.0] * 5, 5.0) == Audit()


@pytest.mark.parametrize(("after", "named"), [(2.3, True), (2.2, False)])
def test_time_moved_to_a_known_kernel(after: float, named: bool) -> None:
    """Of a saving of 5 ms, 25 % are 1.25 ms; less is charged and not a reason by itself."""
    found = audit(steady(1.0), steady(after), [1.0] * 5, [1.0] * 5, 5.0)
    assert ("fill" in found.reason) is named
    if not named:
        assert found.charge_ms == pytest.approx(after - 1, abs=0.02)


def test_small_growth_in_many_groups_is_charged_in_sum() -> None:
    keys = [LaunchKey(f"k{n}()", GRID, BLOCK) for n in range(20)]
    before = runs(5, lambda: dict.fromkeys(keys, 1.0))
    after = runs(5, lambda: dict.fromkeys(keys, 1.1))
    found = audit(before, after, [], [], 5.0)
    assert found.charge_ms == pytest.approx(2.0)
    assert found.reason == ""


def test_a_kernel_that_became_faster_does_not_pay_for_one_that_grew() -> None:
    found = audit(steady(1.0, check=5.0), steady(4.0, check=2.0), [1.0] * 5, [1.0] * 5, 5.0)
    assert "fill" in found.reason


def test_growth_that_may_be_noise_is_no_reason() -> None:
    values = iter((1.0, 5.0, 2.0, 4.0, 3.0, 3.0, 7.0, 4.0, 6.0, 5.0))
    before, after = (runs(5, lambda: {FILL: next(values)}) for _side in range(2))
    assert audit(before, after, [1.0], [1.0], 5.0) == Audit()


STEADY = [1.0, 1.01, 1.0, 1.01, 1.0]
UNSTEADY = [1.0, 1.4, 1.1, 1.2, 1.3]
"""A standard deviation of 13 %."""
WIDE = [0.85, 0.9, 0.9, 0.95, 1.0, 1.0, 1.05, 1.1, 1.1, 1.15]
"""A standard deviation of 10 % of a mean of 1, so the fastest run may become 20 % slower: 1.02."""


@pytest.mark.parametrize(
    ("before", "after", "saving_ms", "rejected"),
    [
        (STEADY, [1.11, 1.12, 1.11], 5.0, True),
        (STEADY, [1.09, 1.12, 1.11], 5.0, False),
        (UNSTEADY, [1.25] * 5, 5.0, False),
        (UNSTEADY, [1.9] * 5, 5.0, True),
        (STEADY, [1.11, 1.12, 1.11], 430.0, True),
        (STEADY, [1.11, 1.12, 1.11], 450.0, False),
        (WIDE, [x + 0.165 for x in WIDE], 5.0, False),
        (WIDE, [x + 0.175 for x in WIDE], 5.0, True),
        (STEADY, [1.2, 4.0, 1.3], 5.0, False),
        (STEADY, [1.2], 5.0, False),
        (STEADY, [0.5] * 3, 5.0, False),
        ([], [9.0] * 3, 5.0, False),
        ([9.0] * 3, [], 5.0, False),
    ],
)
def test_process_time(before: list[float], after: list[float], saving_ms: float, rejected: bool) -> None:
    """The fastest run of each side: beyond 10 %, twice the spread and a quarter of the saving, and surely grown."""
    found = audit(steady(1.0), steady(1.0), before, after, saving_ms)
    assert bool(found.reason) is rejected
    assert "slower" in found.reason or not rejected


def simulated(moved_ms: float, seed: int) -> Audit:
    """Ten known kernels at 1 % noise, process times at 8 %, of a candidate that saved 3 ms and moved some of it."""
    noise = random.Random(seed)
    keys = [LaunchKey(f"k{n}()", GRID, BLOCK) for n in range(10)]

    def side(count: int, moved: float) -> list[Charged]:
        return runs(
            count, lambda: {k: (2.0 + (moved if k is keys[4] else 0)) * noise.gauss(1, 0.01) for k in keys}
        )

    before, after = side(6, 0.0), side(5, moved_ms)
    walls = [[noise.gauss(1, 0.08) for _ in range(count)] for count in (6, 5)]
    return audit(before, after, walls[0], walls[1], 3.0)


def test_honest_candidates_are_not_rejected() -> None:
    found = [simulated(0.0, seed) for seed in range(400)]
    assert sum(bool(a.reason) for a in found) <= 2
    assert sum(a.charge_ms > 0 for a in found) <= 4


def test_moved_work_is_caught() -> None:
    found = [simulated(1.5, seed) for seed in range(100)]
    assert sum("k4()" in a.reason for a in found) >= 98
