"""The judge: samples in, verdict out. Pure; it knows neither programs nor clocks.

A sample is the natural logarithm of the target time of one verified run. A is the incumbent, B the candidate.
`docs/architecture.md` says in short how it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from statistics import mean, median
from typing import Literal

from tachyon_tui.engine.student import t_quantile

Who = Literal["A", "B"]
Kind = Literal["clear gain", "gain", "clearly slower", "no gain", "cannot be seen", "not confirmed"]

NOISE_FLOOR = 3e-4
TICK_SHARE = 0.3


@dataclass(frozen=True)
class Rule:
    """The constants of the rule; gains and noise in log units, that is shares of the time."""

    min_gain: float = 0.01
    alpha: float = 2e-4
    """One-sided level of each look."""
    clear: float = 0.05
    clear_noise: float = 8.0
    slow: float = 0.25
    slow_noise: float = 10.0
    calibration: int = 5
    confirming: int = 3
    min_pairs: int = 3
    max_pairs: int = 9


@dataclass(frozen=True)
class Standing:
    """The gain of a round as far as it is known; log units, positive is faster."""

    gain: float
    low: float
    high: float
    runs: int
    """All runs of the round so far, the cold and the confirming ones too."""

    @property
    def gain_percent(self) -> float:
        """Time saved in percent."""
        return (1 - exp(-self.gain)) * 100

    @property
    def low_percent(self) -> float:
        return (1 - exp(-self.low)) * 100

    @property
    def high_percent(self) -> float:
        return (1 - exp(-self.high)) * 100


@dataclass(frozen=True)
class Outcome:
    """The end of a round."""

    accepted: bool
    kind: Kind
    standing: Standing
    out_of_time: bool = False


Round = Generator[Who, float, Outcome]


def _nothing() -> None:
    pass


def _squares(values: Sequence[float]) -> tuple[float, int]:
    centre = mean(values)
    return sum((v - centre) ** 2 for v in values), len(values) - 1


def _deviation(values: Sequence[float]) -> float:
    squares, df = _squares(values)
    return sqrt(squares / df) if df else 0.0


class Judge:
    """Keeps what is known of the incumbent's noise and level; `round` decides on one candidate."""

    def __init__(self, rule: Rule | None = None, tick: float = 0.0) -> None:
        """``tick`` is the timer's resolution as a share of the target time."""
        self.rule = rule or Rule()
        self._tick = tick
        self._squares = 0.0
        self._df = 0
        self._recent: list[float] = []
        self._turned_down: Callable[[], None] = _nothing
        self._runs = 0
        self.standing: Standing | None = None
        """How the current round stands; None before both sides have a warm run."""

    def set_tick(self, tick: float) -> None:
        """Renew the resolution after the target time changed."""
        self._tick = tick

    @property
    def noise(self) -> float:
        """Pooled standard deviation of one run, never below its floor."""
        pooled = sqrt(self._squares / self._df) if self._df else 0.0
        return max(self._floor, pooled)

    @property
    def level(self) -> float:
        """Median of the incumbent's last five warm runs."""
        return median(self._recent)

    @property
    def visible(self) -> float:
        """A gain (share of the time, 0 to 1) that is accepted about 97 times in 100; smaller ones may be missed."""
        return 1 - exp(-(self.rule.min_gain + 3.5 * self.noise * sqrt(9 / self.rule.max_pairs)))

    @property
    def samples_for_five_percent(self) -> int:
        """The `max_samples` with which a gain of 5 % would be seen at this noise."""
        spare = max(1e-6, 0.05 - self.rule.min_gain)
        return 1 + max(1, round(9 * (3.5 * self.noise / spare) ** 2))

    @property
    def _floor(self) -> float:
        return max(NOISE_FLOOR, TICK_SHARE * self._tick)

    def calibrate(self, warm: Sequence[float]) -> None:
        """Begin with the warm runs (at least two) of a new incumbent."""
        self._renew([list(warm)])

    def turn_down(self) -> None:
        """The candidate just accepted is not taken over (an audit or a person says no): A stays the incumbent.

        Does nothing when the last round was not accepted.
        """
        self._turned_down()
        self._turned_down = _nothing

    def _renew(self, groups: Sequence[list[float]]) -> None:
        sums = [_squares(g) for g in groups if len(g) > 1]
        self._squares = sum(s for s, _ in sums)
        self._df = sum(d for _, d in sums)
        self._recent = list(groups[0])[-5:]

    def _keep(self, a: list[float], b: list[float]) -> None:
        for group in (a, b):
            if len(group) > 1:
                squares, df = _squares(group)
                self._squares += squares
                self._df += df
        self._recent = (self._recent + a)[-5:]

    def _reject(self, a: list[float], b: list[float], kind: Kind, *, out_of_time: bool = False) -> Outcome:
        self._keep(a, b)
        return self._end(False, kind, out_of_time=out_of_time)

    def _accept(self, groups: Sequence[list[float]], a: list[float], b: list[float], kind: Kind) -> Outcome:
        squares, df, recent = self._squares, self._df, self._recent

        def stay() -> None:
            self._squares, self._df, self._recent = squares, df, recent
            self._keep(a, b)

        self._renew(groups)
        self._turned_down = stay
        return self._end(True, kind)

    def _end(self, accepted: bool, kind: Kind, *, out_of_time: bool = False) -> Outcome:
        assert self.standing is not None
        self.standing = replace(self.standing, runs=self._runs)
        return Outcome(accepted, kind, self.standing, out_of_time)

    def _begin(self) -> None:
        self._runs, self.standing, self._turned_down = 0, None, _nothing

    def _stand(self, a: Sequence[float], b: Sequence[float]) -> None:
        """A rough standing for the cases that end before pairs are compared: the range of the runs."""
        self.standing = Standing(mean(a) - mean(b), min(a) - max(b), max(a) - min(b), self._runs)

    def _take(self, who: Who) -> Generator[Who, float, float]:
        value = yield who
        self._runs += 1
        return value

    def _confirm(self) -> Generator[Who, float, list[float]]:
        new: list[float] = []
        for _ in range(self.rule.confirming):
            new.append((yield from self._take("B")))
        return new

    def round(self, may_go_on: Callable[[], bool] = lambda: True) -> Round:
        """Decide on one candidate: yields whose run is wanted next and takes its sample.

        ``may_go_on`` is asked before each further pair; False ends the round as “cannot be seen” for want of time.
        """
        rule, level, noise = self.rule, self.level, self.noise
        self._begin()
        cold = yield from self._take("B")
        a = [(yield from self._take("A"))]
        self._stand(a, [cold])
        if cold > max(a[0], level) + max(rule.slow, rule.slow_noise * noise):
            return self._reject(a, [], "clearly slower")
        b = [(yield from self._take("B"))]
        self._stand(a, b)
        if max(cold, b[0]) < min(a[0], level) - max(rule.clear, rule.clear_noise * noise):
            new = yield from self._confirm()
            again = yield from self._take("A")
            if self._clear(max(cold, b[0]), new, min(a[0], again, level), noise):
                self._stand([*a, again], new)
                return self._accept([new + b], [*a, again], b, "clear gain")
        elif min(cold, b[0]) > max(a[0], level) - rule.min_gain / 2:
            return self._reject(a, b, "no gain")
        return (yield from self._pairs(cold, a, b, may_go_on))

    def _clear(self, slowest: float, new: Sequence[float], top: float, noise: float) -> bool:
        rule = self.rule
        return slowest < top - max(rule.clear, rule.clear_noise * noise) and median(new) < top - max(
            rule.clear, rule.clear_noise * max(noise, _deviation(new))
        )

    def _pairs(self, cold: float, a: list[float], b: list[float], may_go_on: Callable[[], bool]) -> Round:
        rule = self.rule
        order: tuple[Who, Who] = ("B", "A")
        for n in range(2, rule.max_pairs + 1):
            if not may_go_on():
                return self._reject(a, b, "cannot be seen", out_of_time=True)
            for who in order:
                (a if who == "A" else b).append((yield from self._take(who)))
            order = (order[1], order[0])
            (sa, da), (sb, db) = _squares(a), _squares(b)
            df = self._df + da + db
            spread = max(sqrt((self._squares + sa + sb) / df), _deviation(a), _deviation(b), self._floor)
            error, gain = spread * sqrt(2 / n), mean(a) - mean(b)
            reach = t_quantile(rule.alpha, df) * error
            self.standing = Standing(gain, gain - reach, gain + reach, self._runs)
            apart = n > rule.min_pairs or max([*b, cold]) < min(a + self._recent)
            if n >= rule.min_pairs and gain - reach > rule.min_gain and apart:
                new = yield from self._confirm()
                if mean(a) - median(new) < rule.min_gain / 2:
                    return self._reject(a, b, "not confirmed")
                return self._accept([new, b], a, b, "gain")
            if gain < rule.min_gain / 2:
                return self._reject(a, b, "no gain")
            if n < rule.max_pairs:
                left = 2 * (rule.max_pairs - n)
                hardest = t_quantile(rule.alpha, df + left) * spread * sqrt(2 / rule.max_pairs)
                if gain + 1.5 * error < rule.min_gain + hardest:
                    return self._reject(a, b, "cannot be seen")
        return self._reject(a, b, "cannot be seen")

    def round_unpaired(self, before: Sequence[float]) -> Round:
        """Decide where the incumbent's build cannot be kept: only a clear gain is accepted.

        ``before`` holds three runs of the incumbent, taken just before the candidate was built; the A that is
        wanted near the end needs a rebuild.
        """
        rule, level, noise = self.rule, self.level, self.noise
        self._begin()
        a = list(before)
        cold = yield from self._take("B")
        self._stand(a, [cold])
        if cold > max(*a, level) + max(rule.slow, rule.slow_noise * noise):
            return self._reject(a, [], "clearly slower")
        b = [(yield from self._take("B"))]
        self._stand(a, b)
        if max(cold, b[0]) < min(*a, level) - max(rule.clear, rule.clear_noise * noise):
            new = yield from self._confirm()
            again = yield from self._take("A")
            if self._clear(max(cold, b[0]), new, min(*a, again, level), noise):
                self._stand([*a, again], new)
                return self._accept([new + b], [*a, again], b, "clear gain")
            return self._reject(a, b, "not confirmed")
        if min(cold, b[0]) > max(*a, level) - rule.min_gain / 2:
            return self._reject(a, b, "no gain")
        return self._reject(a, b, "cannot be seen")
