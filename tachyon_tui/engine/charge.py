"""What of a run is charged to the candidate: the target time, exact facts, and growth outside the target set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import mean, median
from typing import Literal

from tachyon_tui.core.events import KernelTime
from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import Launch, LaunchKey, RunRecord, busy_ns
from tachyon_tui.core.units import bytes_text, ms_text
from tachyon_tui.engine.student import t_quantile

GROWTH_ALPHA = 1e-3
NAMED_SHARE = 0.25
"""An outside group that grew by more than this share of the saving is the reason of a rejection."""
WALL_GROWTH = 0.10
WALL_SCATTER_SECONDS = 0.02
"""Growth of the process time below this is start-up jitter of the machine, not work."""
NO_GRID = (0, 0, 0)
"""Stands for grid and block where a group is a kind of copy."""


class CountsDiffer(Exception):
    """The baseline's own runs launched the target kernels a different number of times."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__(str(counts))
        self.counts = tuple(counts)


@dataclass(frozen=True)
class Charged:
    """One run as the judge sees it; times in ms."""

    ms: float
    """Busy time of everything charged."""
    sum_ms: float
    """Sum of the charged launches; larger than ``ms`` where they overlap."""
    outside_ms: Mapping[LaunchKey, float]
    """Summed time of each known group outside the target set; with ``per="launch"`` divided by charged launches."""
    launches: Mapping[LaunchKey, int]
    """Every group launched, with its count."""
    kernels: tuple[KernelTime, ...]
    targets: int
    """Launches whose name holds the target text."""
    more: tuple[str, ...] = ()
    """Work beyond the baseline's, charged above."""
    less: tuple[str, ...] = ()
    """Work that the baseline did and this run did not."""


@dataclass(frozen=True)
class Scope:
    """The target set and all that the baseline's calibration runs did besides."""

    text: str
    """Substring of the target kernels' demangled names; empty means all kernels."""
    per: Literal["run", "launch"] = "run"
    outside: Mapping[LaunchKey, tuple[int, int]] = field(default_factory=dict)
    """Fewest and most launches of each group outside the target set."""
    transfers: Mapping[str, tuple[int, int, int, int, float]] = field(default_factory=dict)
    """For each kind of copy: fewest and most calls, fewest and most bytes, median ns together."""
    units: Mapping[str, int] = field(default_factory=dict)
    """Fewest launches of each target kernel, by its name without template arguments and parameters."""
    learned: bool = True
    """False before the calibration: then nothing is known to be more or less than usual."""

    def is_target(self, key: LaunchKey) -> bool:
        """Whether the kernel's name holds the target text."""
        return self.text in key.name

    def charge(self, record: RunRecord) -> Charged:
        """The target time of a sound record. Extra launches, kernels and copies are charged; fewer are named.

        With ``per="launch"`` a program does as much as its time allows, so numbers of known launches and copies are
        free, and everything is charged per launch of the target kernel that the baseline launches most: a split or
        padded kernel gains nothing.
        """
        if record.instrument == "stopwatch":
            ms = record.value_ms or 0.0
            return Charged(ms, ms, {}, {}, (), 1)
        free = self.per == "launch"
        charged, outside_ns, seen = self._split(sorted(record.launches, key=lambda launch: launch.start))
        durations = [launch.end - launch.start for launch in charged]
        share = 1
        busy: float = busy_ns((launch.start, launch.end) for launch in charged)
        total: float = sum(durations)
        if free and durations:
            rest, share = self._after_the_first(charged)
            busy = total = sum(launch.end - launch.start for launch in rest) / max(1, share - 1)
        more = [
            _("{name} was launched {count} times, the baseline launches it {known}").format(
                name=key.name, count=count, known=self.outside[key][1]
            )
            for key, count in seen.items()
            if key in self.outside and count > self.outside[key][1] and not free
        ]
        less = [
            _("{name} was launched {count} times, the baseline launches it {known}").format(
                name=key.name, count=seen.get(key, 0), known=low
            )
            for key, (low, _high) in self.outside.items()
            if seen.get(key, 0) < (min(low, 1) if free else low)
        ]
        less += self._fewer_units(charged)
        extra_ns = 0.0
        usual_kinds = _by_kind(record) if self.learned else {}
        for kind, (calls, size, ns) in usual_kinds.items():
            if free and kind in self.transfers:
                outside_ns[LaunchKey(kind, NO_GRID, NO_GRID)] = ns
                continue
            low_calls, high_calls, low_bytes, high_bytes, usual = self.transfers.get(kind, (0, 0, 0, 0, 0.0))
            if calls > high_calls or size > high_bytes:
                extra_ns += max(0.0, ns - usual)
                more.append(_transfer_text(kind, calls, size, high_calls, high_bytes))
            if calls < low_calls or size < low_bytes:
                less.append(_transfer_text(kind, calls, size, low_calls, low_bytes))
        for kind, (low_calls, _calls, low_bytes, _bytes, _ns) in self.transfers.items():
            if low_calls and kind not in _by_kind(record):
                less.append(_transfer_text(kind, 0, 0, low_calls, low_bytes))
        return Charged(
            ms=(busy + extra_ns / share) / 1e6,
            sum_ms=(total + extra_ns / share) / 1e6,
            outside_ms={key: ns / share / 1e6 for key, ns in outside_ns.items()},
            launches=seen,
            kernels=self._kernels(record.launches),
            targets=sum(1 for launch in record.launches if self.is_target(launch.key)),
            more=tuple(more),
            less=tuple(less),
        )

    def _after_the_first(self, charged: Sequence[Launch]) -> tuple[Sequence[Launch], int]:
        """What follows the first launch of the unit, and how often the unit was launched in all."""
        unit = max(self.units, key=lambda name: self.units[name], default="")
        places = [at for at, launch in enumerate(charged) if base_name(launch.key.name) == unit]
        if len(places) > 1:
            return charged[places[0] + 1 :], len(places)
        if places or len(charged) == 1:
            return charged, 1
        return charged[1:], len(charged)

    def _fewer_units(self, charged: Sequence[Launch]) -> list[str]:
        """Target kernels that are launched less often than before, though not gone (renamed, fused, split)."""
        if not self.units:
            return []
        seen = Counter(base_name(launch.key.name) for launch in charged)
        if self.per == "launch":
            unit = max(self.units, key=lambda name: self.units[name])
            return [] if seen[unit] else [_("{name} is not launched any more").format(name=unit)]
        return [
            _("{name} was launched {count} times, the baseline launches it {known}").format(
                name=name, count=seen[name], known=fewest
            )
            for name, fewest in self.units.items()
            if 0 < seen[name] < fewest
        ]

    def _split(
        self, launches: Sequence[Launch]
    ) -> tuple[list[Launch], dict[LaunchKey, float], Counter[LaunchKey]]:
        charged: list[Launch] = []
        outside: dict[LaunchKey, float] = {}
        seen: Counter[LaunchKey] = Counter()
        for launch in launches:
            seen[launch.key] += 1
            known = self.outside.get(launch.key)
            if known is not None and (self.per == "launch" or seen[launch.key] <= known[1]):
                outside[launch.key] = outside.get(launch.key, 0.0) + launch.end - launch.start
            else:
                charged.append(launch)
        return charged, outside, seen

    def _kernels(self, launches: Sequence[Launch]) -> tuple[KernelTime, ...]:
        totals: dict[LaunchKey, list[int]] = {}
        for launch in launches:
            entry = totals.setdefault(launch.key, [0, 0])
            entry[0] += 1
            entry[1] += launch.end - launch.start
        ordered = sorted(totals.items(), key=lambda item: -item[1][1])
        return tuple(
            KernelTime(
                name=key.name,
                grid=key.grid,
                block=key.block,
                count=count,
                ms=ns / 1e6,
                target=key not in self.outside,
            )
            for key, (count, ns) in ordered[:50]
        )


def base_name(name: str) -> str:
    """A kernel's name without template arguments and parameters, which an optimisation may change."""
    return re.split(r"[<(]", name.replace("(anonymous namespace)", ""), maxsplit=1)[0].split(" ")[-1]


def _by_kind(record: RunRecord) -> dict[str, tuple[int, int, int]]:
    return {t.kind: (t.count, t.bytes, t.ns) for t in record.transfers}


def _transfer_text(kind: str, calls: int, size: int, known_calls: int, known_bytes: int) -> str:
    return _("{kind}: {calls} calls, {size}; the baseline makes {known_calls}, {known_size}").format(
        kind=kind,
        calls=calls,
        size=bytes_text(size),
        known_calls=known_calls,
        known_size=bytes_text(known_bytes),
    )


def learn_scope(records: Sequence[RunRecord], text: str, per: Literal["run", "launch"]) -> Scope:
    """The scope from all calibration runs of the baseline.

    Raises `CountsDiffer` when, per run, the target was launched a different number of times.
    """
    counts = [Counter(launch.key for launch in record.launches) for record in records]
    targets = [sum(n for key, n in c.items() if text in key.name) for c in counts]
    if per == "run" and len(set(targets)) > 1:
        raise CountsDiffer(targets)
    keys = {key for c in counts for key in c if text not in key.name}
    outside = {key: (min(c[key] for c in counts), max(c[key] for c in counts)) for key in keys}
    kinds = {t.kind for record in records for t in record.transfers}
    table = [_by_kind(record) for record in records]
    transfers = {}
    for kind in kinds:
        rows = [row.get(kind, (0, 0, 0)) for row in table]
        calls, sizes, times = zip(*rows, strict=True)
        transfers[kind] = (min(calls), max(calls), min(sizes), max(sizes), float(median(times)))
    units = [Counter(base_name(la.key.name) for la in r.launches if text in la.key.name) for r in records]
    fewest = {name: min(c[name] for c in units) for name in {name for c in units for name in c}}
    return Scope(text, per, outside, transfers, {name: n for name, n in fewest.items() if n})


def growth(before: Sequence[float], after: Sequence[float]) -> float:
    """Lower end (one-sided, 99.9 %) of how much the mean grew; 0 when no growth is certain."""
    n, m = len(before), len(after)
    if n < 2 or m < 2:
        return 0.0
    centre_a, centre_b = mean(before), mean(after)
    squares = sum((v - centre_a) ** 2 for v in before) + sum((v - centre_b) ** 2 for v in after)
    df = n + m - 2
    reach = t_quantile(GROWTH_ALPHA, df) * sqrt(squares / df) * sqrt(1 / n + 1 / m)
    return max(0.0, centre_b - centre_a - reach)


@dataclass(frozen=True)
class Audit:
    """What else changed while the target became faster."""

    charge_ms: float = 0.0
    """Certain growth outside the target set, to be added to the candidate's time."""
    reason: str = ""
    """Why the candidate is rejected whatever its target time; empty when nothing is."""


def audit(
    incumbent: Sequence[Charged],
    candidate: Sequence[Charged],
    incumbent_seconds: Sequence[float],
    candidate_seconds: Sequence[float],
    saving_ms: float,
) -> Audit:
    """Weigh a faster candidate: time moved to known kernels outside the set, or to the host.

    ``*_seconds`` is the wall time of the whole process, of as many runs as are known of each side. It must have grown
    beyond 10 % and two standard deviations between the fastest runs, and for certain (99.9 %) on average: walls of
    short programs scatter.
    """
    keys = {key for run in (*incumbent, *candidate) for key in run.outside_ms}
    for key in sorted(keys):
        before = [run.outside_ms.get(key, 0.0) for run in incumbent]
        after = [run.outside_ms.get(key, 0.0) for run in candidate]
        if growth(before, after) > 0 and mean(after) - mean(before) > NAMED_SHARE * saving_ms:
            return Audit(
                reason=_("time moved to {name}: {before} became {after}").format(
                    name=key.name, before=ms_text(mean(before)), after=ms_text(mean(after))
                )
            )
    if incumbent_seconds and candidate_seconds:
        fastest, challenger = min(incumbent_seconds), min(candidate_seconds)
        spread = 0.0
        if len(incumbent_seconds) > 1:
            centre = mean(incumbent_seconds)
            squares = sum((s - centre) ** 2 for s in incumbent_seconds)
            spread = sqrt(squares / (len(incumbent_seconds) - 1)) / centre
        grown = challenger - fastest
        least = max(max(WALL_GROWTH, 2 * spread) * fastest, WALL_SCATTER_SECONDS)
        beyond = grown > least and grown * 1000 > NAMED_SHARE * saving_ms
        if beyond and growth(incumbent_seconds, candidate_seconds) > 0:
            return Audit(
                reason=_("the whole program became slower: {before:.3f} s became {after:.3f} s").format(
                    before=fastest, after=challenger
                )
            )
    total = growth(
        [sum(run.outside_ms.values()) for run in incumbent],
        [sum(run.outside_ms.values()) for run in candidate],
    )
    return Audit(charge_ms=total)
