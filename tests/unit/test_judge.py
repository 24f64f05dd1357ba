"""The judge against an oracle of its own, by hand-made series, and under noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import exp, fsum, log, sqrt
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachyon_tui.engine.judge import NOISE_FLOOR, Judge, Outcome, Round, Rule, Standing
from tachyon_tui.engine.student import t_quantile

LEVEL = log(80.6)
QUIET = (-0.001, -0.001, 0.0, 0.001, 0.001)
"""Five warm runs with a standard deviation of 0.1 %."""


def calibrated(spread: float = 0.001, rule: Rule | None = None, tick: float = 0.0) -> Judge:
    """A judge whose incumbent has level 0 (about LEVEL) and exactly this noise."""
    judge = Judge(rule, tick)
    judge.calibrate([LEVEL + spread * x / 0.001 for x in QUIET])
    return judge


def play(round_: Round, run: Callable[[str], float]) -> tuple[str, Outcome]:
    """Let the round have the runs it asks for; the order of runs and the outcome."""
    order = ""
    who = next(round_)
    while True:
        order += who
        try:
            who = round_.send(run(who))
        except StopIteration as end:
            outcome: Outcome = end.value
            return order, outcome


def given_runs(series: Iterable[float]) -> Callable[[str], float]:
    """The runs of a hand-made series, whoever is asked for."""
    values = iter(series)
    return lambda _who: LEVEL + next(values)


def by_side(a: float, b: float) -> Callable[[str], float]:
    """A program without noise."""
    return lambda who: LEVEL + (a if who == "A" else b)


# -- the oracle: the rule once more, written down independently -----------------------


class Oracle:
    """`run(who)` makes one run; a round is one call."""

    def __init__(self, tick: float = 0.0, pairs: int = 9) -> None:
        self.floor, self.pairs = max(3e-4, 0.3 * tick), pairs

    def calibrate(self, warm: Sequence[float]) -> None:
        self.groups, self.recent = [list(warm)], list(warm)

    def pooled(self, groups: Sequence[Sequence[float]]) -> tuple[float, int]:
        squares, df = 0.0, 0
        for group in (g for g in groups if len(g) > 1):
            centre = fsum(group) / len(group)
            squares += fsum((x - centre) ** 2 for x in group)
            df += len(group) - 1
        return squares, df

    def spread(self, *groups: Sequence[float]) -> float:
        squares, df = self.pooled(groups)
        return sqrt(squares / df)

    @property
    def noise(self) -> float:
        return max(self.floor, self.spread(*self.groups))

    def rejected(self, a: list[float], b: list[float], why: str) -> str:
        self.groups += [a, b]
        self.recent = [*self.recent, *a][-5:]
        return why

    def round(self, run: Callable[[str], float]) -> str:
        level, s = median(self.recent), self.noise
        cold, a = run("B"), [run("A")]
        if cold > max(a[0], level) + max(0.25, 10 * s):
            return self.rejected(a, [], "clearly slower")
        b = [run("B")]
        margin = max(0.05, 8 * s)
        if max(cold, *b) < min(a[0], level) - margin:
            new = [run("B"), run("B"), run("B")]
            top = min(a[0], level, run("A"))
            calm = max(0.05, 8 * max(s, self.spread(new)))
            if max(cold, *b) < top - margin and median(new) < top - calm:
                self.calibrate([*new, *b])
                return "clear gain"
        elif min(cold, *b) > max(a[0], level) - 0.005:
            return self.rejected(a, b, "no gain")
        n = 1
        while n < self.pairs:
            n += 1
            for who in ("B", "A") if n % 2 == 0 else ("A", "B"):
                {"A": a, "B": b}[who].append(run(who))
            squares, df = self.pooled([*self.groups, a, b])
            s = max(sqrt(squares / df), self.spread(a), self.spread(b), self.floor)
            gain, error = (fsum(a) - fsum(b)) / n, s * sqrt(2 / n)
            sure = gain - t_quantile(2e-4, df) * error > 0.01
            if sure and (n > 3 or (n == 3 and max(cold, *b) < min(*a, *self.recent))):
                new = [run("B"), run("B"), run("B")]
                if fsum(a) / n - median(new) < 0.005:
                    return self.rejected(a, b, "not confirmed")
                self.groups, self.recent = [new, b], new
                return "gain"
            if gain < 0.005:
                return self.rejected(a, b, "no gain")
            later = t_quantile(2e-4, df + 2 * (self.pairs - n)) * s * sqrt(2 / self.pairs)
            if n < self.pairs and gain + 1.5 * error < 0.01 + later:
                break
        return self.rejected(a, b, "cannot be seen")


# -- worlds: programs under noise ---------------------------------------------------------------------------

Noise = Callable[[random.Random, int, str], float]
"""(random, number of the run, who) -> what the run adds to the logarithm of its time."""


def gauss(s: float) -> Noise:
    return lambda r, _n, _who: r.gauss(0, s)


def drifting(s: float, step: float) -> Noise:
    return lambda r, n, _who: r.gauss(0, s) + step * n


def two_level(gap: float, p: float) -> Noise:
    return lambda r, _n, _who: r.gauss(0, 0.002) + (gap if r.random() < p else 0)


def heavy(s: float) -> Noise:
    """Student t with 2.5 degrees of freedom."""
    return lambda r, _n, _who: s * r.gauss(0, 1) / sqrt(r.gammavariate(1.25, 2) / 2.5)


def skewed(s: float) -> Noise:
    return lambda r, _n, _who: s * (r.expovariate(1) - 1)


def noisier_candidate(s: float, times: float) -> Noise:
    return lambda r, _n, who: r.gauss(0, s * times if who == "B" else s)


NOISES: dict[str, Noise] = {
    "gauss 0.1 %": gauss(0.001),
    "gauss 0.5 %": gauss(0.005),
    "gauss 1 %": gauss(0.01),
    "gauss 3 %": gauss(0.03),
    "gauss 10 %": gauss(0.1),
    "drift down": drifting(0.003, -0.0005),
    "drift up fast": drifting(0.003, 0.003),
    "two-level 4 %": two_level(0.04, 0.5),
    "two-level 30 %": two_level(0.3, 0.3),
    "heavy tails": heavy(0.005),
    "skewed": skewed(0.02),
    "noisier candidate": noisier_candidate(0.005, 6),
}
COLD = {"none": 0.0, "slow": 0.06, "fast": -0.15}


class World:
    """Incumbent and candidate as a series of runs; the first run after a build is cold."""

    def __init__(self, noise: Noise, cold: float, seed: int) -> None:
        self._noise, self._cold, self._random = noise, cold, random.Random(seed)
        self._level, self._gain, self._runs, self._first = LEVEL, 0.0, 0, True
        self.order = ""

    def build(self, gain: float) -> None:
        """A new candidate that saves ``gain`` (log units)."""
        self._gain, self._first, self.order = gain, True, ""

    def accept(self) -> None:
        self._level -= self._gain

    def run(self, who: str) -> float:
        self.order += who
        self._runs += 1
        value = self._level - (self._gain if who == "B" else 0) + self._noise(self._random, self._runs, who)
        if who == "B" and self._first:
            self._first = False
            value += self._cold
        return value

    def warm(self) -> list[float]:
        return [self.run("A") for _ in range(5)]


GAINS = (0.0, 0.0, 0.008, 0.015, 0.03, 0.06, 0.1, 0.4, -0.02, -0.3)


@pytest.mark.parametrize("cold", COLD)
@pytest.mark.parametrize("noise", NOISES)
def test_same_rounds_as_the_oracle(noise: str, cold: str) -> None:
    """The same runs in the same order, the same verdicts and the same state, over thousands of sessions in all."""
    kinds = set()
    for seed in range(90):
        choose = random.Random(seed)
        worlds = [World(NOISES[noise], COLD[cold], seed) for _ in range(2)]
        tick = choose.choice((0.0, 0.0, 0.016))
        pairs = choose.choice((9, 9, 3, 15))
        judge, oracle = Judge(Rule(max_pairs=pairs), tick), Oracle(tick, pairs)
        judge.calibrate(worlds[0].warm())
        oracle.calibrate(worlds[1].warm())
        for _round in range(4):
            gain = choose.choice(GAINS)
            for world in worlds:
                world.build(gain)
            order, outcome = play(judge.round(), worlds[0].run)
            kind = oracle.round(worlds[1].run)
            assert (order, outcome.kind) == (worlds[1].order, kind)
            assert outcome.accepted == (kind in ("gain", "clear gain"))
            assert outcome.standing.runs == len(order)
            assert judge.noise == pytest.approx(oracle.noise, rel=1e-9)
            assert judge.level == pytest.approx(median(oracle.recent), rel=1e-12)
            kinds.add(kind)
            if outcome.accepted:
                for world in worlds:
                    world.accept()
    assert len(kinds) >= 2


# -- each verdict by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "order", "series"),
    [
        ("clearly slower", "BA", [0.26, 0.0]),
        ("no gain", "BAB", [0.0, 0.0, 0.0]),
        ("no gain", "BAB", [0.24, 0.0, 0.24]),
        ("clear gain", "BABBBBA", [-0.5, 0.0, -0.5, -0.5, -0.5, -0.5, 0.0]),
        ("no gain", "BABBA", [-0.03, 0.0, -0.001, -0.001, 0.0]),
        ("gain", "BAB BA AB BBB", [-0.03, 0, -0.03, -0.03, 0, 0, -0.03, -0.03, -0.03, -0.03]),
        ("not confirmed", "BAB BA AB BBB", [-0.03, 0, -0.03, -0.03, 0, 0, -0.03, 0.0, -0.03, -0.004]),
        ("cannot be seen", "BAB BA", [-0.02, 0, -0.02, 0.02, 0.04]),
    ],
)
def test_each_kind_of_verdict(kind: str, order: str, series: list[float]) -> None:
    judge = calibrated()
    asked, outcome = play(judge.round(), given_runs(series))
    assert (asked, outcome.kind) == (order.replace(" ", ""), kind)
    assert outcome.accepted == (kind in ("gain", "clear gain"))
    assert outcome.standing.runs == len(series)
    assert judge.standing == outcome.standing
    assert not outcome.out_of_time


def test_cannot_be_seen_after_all_pairs() -> None:
    """A gain of 2.4 % at 1 % noise stays hopeful and is never sure."""
    up, down = 0.01, -0.01
    a = [0.0] + [up if n % 2 else down for n in range(8)]
    b = [-0.024] + [(up if n % 2 else down) - 0.024 for n in range(8)]
    sides = {"A": iter(a), "B": iter([-0.024, *b])}
    order, outcome = play(calibrated(0.01).round(), lambda who: LEVEL + next(sides[who]))
    assert outcome.kind == "cannot be seen"
    assert (order.count("A"), order.count("B")) == (9, 10)


def test_the_cold_run_may_veto_a_clear_gain_and_is_no_sample() -> None:
    """Clear but for a slow cold run: the pairs decide, and their means are without it."""
    series = [0.2, 0.0, *[-0.2, -0.2, 0.0, 0.0, -0.2, -0.2, 0.0], *[-0.2] * 3]
    order, outcome = play(calibrated().round(), given_runs(series))
    assert (order, outcome.kind) == ("BABBAABBABBB", "gain")
    assert outcome.standing.gain == pytest.approx(0.2)


def test_three_pairs_need_every_run_apart() -> None:
    """One B above one A: the fourth pair decides."""
    overlap = [0.0005, 0, -0.03, -0.03, 0, 0, -0.03, -0.03, 0, -0.03, -0.03, -0.03]
    order, outcome = play(calibrated().round(), given_runs(overlap))
    assert (order, outcome.kind) == ("BABBAABBABBB", "gain")


def test_a_clear_gain_that_is_not_confirmed_goes_on_with_pairs() -> None:
    """The confirming runs show 4 % where 5 % are clear; they and the second A are not used in the pairs."""
    series = [-0.06, 0, -0.06, *[-0.04] * 3, 0.0, *[-0.06, 0, 0, -0.06], *[-0.06] * 3]
    order, outcome = play(calibrated().round(), given_runs(series))
    assert (order, outcome.kind) == ("BABBBBA" + "BAAB" + "BBB", "gain")
    assert outcome.standing.gain == pytest.approx(0.06)


def test_the_second_incumbent_run_may_veto_a_clear_gain() -> None:
    """The machine became faster in the meantime."""
    series = [-0.5, 0, *[-0.5] * 4, -0.46]
    assert play(calibrated().round(), given_runs([*series, *[-0.5, -0.5] * 20]))[1].kind != "clear gain"


def test_bounds_of_the_clear_cases() -> None:
    """At 0.1 % noise: 5 % is clear, 25 % is clearly slower; at 5 % noise they are 40 % and 50 %."""

    def kind(spread: float, b: float) -> str:
        return play(calibrated(spread).round(), by_side(0, b))[1].kind

    assert [kind(0.001, -0.052), kind(0.001, -0.049)] == ["clear gain", "gain"]
    assert [kind(0.001, 0.251), kind(0.001, 0.249)] == ["clearly slower", "no gain"]
    assert [kind(0.05, -0.41), kind(0.05, -0.39)] == ["clear gain", "gain"]
    assert [kind(0.05, 0.51), kind(0.05, 0.49)] == ["clearly slower", "no gain"]
    assert [kind(0.001, -0.0049), kind(0.001, -0.0051)] == ["no gain", "cannot be seen"]


# -- what is kept from round to round -----------------------------------------------------------------------


def test_runs_that_led_to_an_acceptance_are_not_used_again() -> None:
    """The lucky runs say 4 %, the confirming ones 2 %: the new incumbent's level is the latter."""
    judge = calibrated()
    series = [-0.04, 0, -0.04, -0.04, 0, 0, -0.04, -0.021, -0.02, -0.019]
    assert play(judge.round(), given_runs(series))[1].accepted
    assert judge.level == pytest.approx(LEVEL - 0.02)


def test_a_clear_gain_calibrates_the_new_incumbent() -> None:
    judge = calibrated(0.01)
    series = [-0.5, 0, -0.504, -0.5, -0.496, -0.5, 0.0]
    assert play(judge.round(), given_runs(series))[1].accepted
    assert judge.level == pytest.approx(LEVEL - 0.5)
    assert judge.noise == pytest.approx(sqrt(2 * 0.004**2 / 3))


def test_rejected_rounds_add_to_what_is_known_of_the_incumbent() -> None:
    judge = calibrated()
    for _round in range(5):
        play(judge.round(), by_side(0.01, 0.01))
    assert judge.level == pytest.approx(LEVEL + 0.01)


def test_only_the_last_five_runs_of_the_incumbent_make_its_level() -> None:
    judge = calibrated()
    for value in (0.02, 0.03):
        play(judge.round(), by_side(value, value))
    assert judge.level == pytest.approx(LEVEL + 0.001)
    play(judge.round(), by_side(0.04, 0.04))
    assert judge.level == pytest.approx(LEVEL + 0.02)


@pytest.mark.parametrize("gain", [0.03, 0.5])
def test_a_candidate_that_was_turned_down_leaves_the_incumbent(gain: float) -> None:
    """A person or an audit said no after the judge had accepted: level and noise are A's, with this round's runs."""
    judge = calibrated(0.002)
    noise = judge.noise
    assert play(judge.round(), by_side(0, -gain))[1].accepted
    assert judge.level == pytest.approx(LEVEL - gain)
    judge.turn_down()
    assert judge.level == pytest.approx(LEVEL)
    assert NOISE_FLOOR < judge.noise < noise
    judge.turn_down()
    assert judge.level == pytest.approx(LEVEL)
    assert play(judge.round(), by_side(0, -0.03))[1].accepted


def test_turning_down_a_rejected_candidate_changes_nothing() -> None:
    judge = calibrated()
    play(judge.round(), by_side(0, -0.5))
    play(judge.round(), by_side(-0.5, -0.5))
    noise, level = judge.noise, judge.level
    judge.turn_down()
    assert (judge.noise, judge.level) == (noise, level)


def test_a_round_that_is_broken_off_leaves_no_trace() -> None:
    judge = calibrated()
    noise, level = judge.noise, judge.level
    round_ = judge.round()
    next(round_)
    for value in (-0.03, 0.2, -0.03, -0.3, 0.2):
        round_.send(LEVEL + value)
    round_.close()
    assert (judge.noise, judge.level) == (noise, level)


# -- noise, and what can be seen ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spread", "tick", "noise"),
    [(0.005, 0.0, 0.005), (0.0, 0.0, 3e-4), (0.0001, 0.0, 3e-4), (0.001, 0.016, 0.0048), (0.01, 0.016, 0.01)],
)
def test_noise_and_its_floor(spread: float, tick: float, noise: float) -> None:
    assert calibrated(spread, tick=tick).noise == pytest.approx(noise)
    later = calibrated(spread)
    later.set_tick(tick)
    assert later.noise == pytest.approx(noise)


@pytest.mark.parametrize(
    ("spread", "max_pairs", "percent"),
    [(0.005, 9, 2.7), (0.01, 9, 4.4), (0.02, 9, 7.7), (0.05, 9, 17), (0.1, 9, 30), (0.01, 29, 2.9)],
)
def test_what_can_be_seen(spread: float, max_pairs: int, percent: float) -> None:
    judge = calibrated(spread, Rule(max_pairs=max_pairs))
    assert judge.visible * 100 == pytest.approx(percent, rel=0.03)
    assert judge.visible == pytest.approx(1 - exp(-(0.01 + 3.5 * spread * sqrt(9 / max_pairs))))


@pytest.mark.parametrize("spread", [0.01, 0.02, 0.04])
def test_samples_that_show_five_percent(spread: float) -> None:
    samples = calibrated(spread).samples_for_five_percent
    visible = calibrated(spread, Rule(max_pairs=samples - 1)).visible
    assert -log(1 - visible) == pytest.approx(0.05, abs=0.002)


def test_standing_in_percent() -> None:
    standing = Standing(log(2), log(1.25), log(4), 7)
    percents = (standing.gain_percent, standing.low_percent, standing.high_percent)
    assert percents == pytest.approx((50, 20, 75))


def test_standing_during_a_round() -> None:
    judge = calibrated()
    round_ = judge.round()
    next(round_)
    assert judge.standing is None
    seen: list[Standing | None] = []
    for value in (-0.03, 0, -0.03, -0.03, 0, 0, -0.03):
        round_.send(LEVEL + value)
        seen.append(judge.standing)
    intervals = [s for s in seen if s is not None]
    assert [s.runs for s in intervals][-2:] == [5, 7]
    assert all(s.low <= s.gain <= s.high for s in intervals)
    assert intervals[-1].high - intervals[-1].low < intervals[-2].high - intervals[-2].low


# -- time ---------------------------------------------------------------------------------------------------


def test_no_time_left_for_pairs() -> None:
    order, outcome = play(calibrated().round(lambda: False), by_side(0, -0.03))
    assert (order, outcome.kind, outcome.out_of_time) == ("BAB", "cannot be seen", True)


@pytest.mark.parametrize("b", [0.3, 0.0, -0.5])
def test_clear_cases_need_no_leave_to_go_on(b: float) -> None:
    assert not play(calibrated().round(lambda: False), by_side(0, b))[1].out_of_time


def test_leave_to_go_on_is_asked_before_each_pair() -> None:
    leaves = iter([True, False])
    order, outcome = play(calibrated().round(lambda: next(leaves)), by_side(0, -0.03))
    assert (order, outcome.out_of_time) == ("BABBA", True)
    assert outcome.standing.gain == pytest.approx(0.03)


# -- where the incumbent's build cannot be kept -------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "order", "series"),
    [
        ("clearly slower", "B", [0.3]),
        ("no gain", "BB", [0.0, 0.0]),
        ("cannot be seen", "BB", [-0.03, -0.03]),
        ("cannot be seen", "BB", [-0.5, -0.03]),
        ("clear gain", "BBBBBA", [-0.5] * 5 + [0.0]),
        ("not confirmed", "BBBBBA", [-0.5] * 5 + [-0.47]),
        ("not confirmed", "BBBBBA", [-0.5, -0.5, -0.01, -0.01, -0.5, 0.0]),
    ],
)
def test_unpaired(kind: str, order: str, series: list[float]) -> None:
    """Only a clear gain is accepted, and only after the incumbent was rebuilt and ran once more."""
    judge = calibrated()
    asked, outcome = play(judge.round_unpaired([LEVEL - 0.001, LEVEL, LEVEL + 0.001]), given_runs(series))
    assert (asked, outcome.kind, outcome.accepted) == (order, kind, kind == "clear gain")
    assert judge.level == pytest.approx(LEVEL - (0.5 if outcome.accepted else 0), abs=0.0011)


def test_unpaired_compares_with_the_fastest_run_of_the_incumbent() -> None:
    before = [LEVEL, LEVEL - 0.46, LEVEL]
    assert play(calibrated().round_unpaired(before), by_side(0, -0.5))[1].kind == "cannot be seen"


@pytest.mark.parametrize(("b", "kind"), [(0.016, "no gain"), (0.014, "cannot be seen")])
def test_unpaired_no_gain_is_against_the_slowest_run_of_the_incumbent(b: float, kind: str) -> None:
    before = [LEVEL, LEVEL + 0.02, LEVEL]
    assert play(calibrated().round_unpaired(before), by_side(0, b))[1].kind == kind


def test_unpaired_and_turned_down() -> None:
    judge = calibrated()
    assert play(judge.round_unpaired([LEVEL] * 3), by_side(0, -0.5))[1].accepted
    judge.turn_down()
    assert judge.level == pytest.approx(LEVEL)


# -- invariants and figures ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(-0.6, 0.6), min_size=30, max_size=30), st.sampled_from([3e-4, 0.002, 0.02, 0.1]))
def test_a_round_always_ends_within_its_runs(series: list[float], spread: float) -> None:
    """1 cold run, 9 of each side, 3 that confirm; 4 more only after a clear gain that was not confirmed."""
    order, outcome = play(calibrated(spread).round(), given_runs(series))
    detour = order.startswith("BABBBBA") and outcome.kind != "clear gain"
    assert len(order) <= 1 + 9 + 9 + 3 + (4 if detour else 0)
    assert outcome.standing.runs == len(order)
    assert outcome.standing.low <= outcome.standing.high


@settings(deadline=None)
@given(st.lists(st.floats(-0.03, 0.03), min_size=22, max_size=22))
def test_pairs_alternate(series: list[float]) -> None:
    """No side ever runs three times in a row before the confirming runs."""
    order, outcome = play(calibrated().round(), given_runs(series))
    decided = order[:-3] if outcome.kind in ("gain", "not confirmed") else order
    pairs = [decided[i : i + 2] for i in range(1, len(decided) - 1, 2)]
    assert pairs == [("AB", "BA")[n % 2] for n in range(len(pairs))]
    assert all(one != other for one, other in pairwise(pairs))


@settings(deadline=None)
@given(st.lists(st.floats(-0.1, 0.1), min_size=26, max_size=26), st.floats(-5, 5))
def test_only_ratios_of_times_matter(series: list[float], shift: float) -> None:
    """Rounded to 1e-6, so that no decision hangs on the last bit."""
    rounded = [round(value, 6) for value in series]
    moved = Judge()
    moved.calibrate([shift + 7 * x for x in QUIET])
    still = Judge()
    still.calibrate([7 * x for x in QUIET])
    values, others = iter(rounded), iter(rounded)
    order, outcome = play(still.round(), lambda _who: next(values))
    moved_order, moved_outcome = play(moved.round(), lambda _who: shift + next(others))
    assert (order, outcome.kind) == (moved_order, moved_outcome.kind)


def accepted_rounds(noise: Noise, gain: float, rounds: int, seed: int) -> int:
    """How many of this many rounds of candidates with this gain are accepted in one session."""
    world, judge, accepted = World(noise, 0.0, seed), Judge(), 0
    judge.calibrate(world.warm())
    for _round in range(rounds):
        world.build(gain)
        outcome = play(judge.round(), world.run)[1]
        accepted += outcome.accepted
        if outcome.accepted:
            world.accept()
    return accepted


def test_equal_programs_are_never_accepted_at_half_a_percent_noise() -> None:
    assert [accepted_rounds(gauss(0.005), 0.0, 10, seed) for seed in range(400)] == [0] * 400


def test_a_gain_of_three_percent_is_seen_at_half_a_percent_noise() -> None:
    assert sum(accepted_rounds(gauss(0.005), 0.0305, 1, seed) for seed in range(100)) >= 95


@pytest.mark.parametrize("noise", ["gauss 10 %", "two-level 4 %", "heavy tails", "skewed", "drift down"])
def test_equal_programs_under_other_noise(noise: str) -> None:
    """At most one false session in a hundred."""
    assert sum(accepted_rounds(NOISES[noise], 0.0, 10, seed) > 0 for seed in range(100)) <= 1
