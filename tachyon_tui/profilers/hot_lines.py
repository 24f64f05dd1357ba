"""Warp samples per source line and stall reason, from ncu's per-instruction metrics.

Every sample belongs to one instruction address and one reason. Samples sit on the instruction that *waits*,
so a load shows on the line that uses its result. Only the innermost file and line of inlined code is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tachyon_tui.core.profile import HotLine, StallShare
from tachyon_tui.profilers.metrics import Action, RawMetric, read_number

SAMPLE_PREFIX = "smsp__pcsamp_warps_issue_stalled_"
NOT_ISSUED = "_not_issued"
RATIO = re.compile(r"smsp__average_warps_issue_stalled_(?P<reason>\w+)_per_issue_active\.ratio")
ISSUED = "selected"
"""The reason of a warp that issued its instruction: a sample, but no stall."""
FEW_SAMPLES = 1000
"""Below this many samples shares are rough."""
TOP_STALLS = 3
MAX_LINES = 200
"""Lines kept of a kernel; templates over many headers have thousands with one sample each."""

Spot = tuple[str, int]
"""File and line."""

_LIBRARY = re.compile(
    r"^/usr/(include|lib\w*|local/cuda[^/]*|local/include)/|^/opt/(nvidia|cuda[^/]*)/|^/nix/store/"
    r"|/targets/[^/]+/include/|/(site|dist)-packages/|/cuda/std/|/triton/language/"
    r"|/include/(cub|thrust|cute|cutlass)/|/cub/cub/|/thrust/thrust/"
    r"|/NVIDIA GPU Computing Toolkit/"
)


@dataclass(frozen=True)
class Sampling:
    """The warp samples of one launch."""

    samples: int
    """All samples, issued ones included."""
    confidence: Literal["yes", "low", "no"]
    stalls: tuple[StallShare, ...]
    """Stall reasons by share of all samples, largest first; averages of WarpStateStats when nothing was sampled."""
    lines: Literal["yes", "no line information", "not collected"]
    hot_lines: tuple[HotLine, ...]
    """By samples, largest first; by instructions when nothing was sampled."""


def is_own(file: str) -> bool:
    """False for a header of the toolkit, of the system or of a well-known CUDA library, judged by its path."""
    return _LIBRARY.search(file.replace("\\", "/")) is None


def sampling(action: Action, sources: Mapping[str, str]) -> Sampling:
    """Read the samples of a launch; ``sources`` maps a file as the compiler saw it to its text."""
    by_pc = _samples_by_pc(action)
    reasons: Counter[str] = Counter()
    for counts in by_pc.values():
        reasons.update(counts)
    total = reasons.total()
    executed = _instances(action.metric_by_name("inst_executed"))
    spots = {pc: _spot(action, pc) for pc in {*by_pc, *executed}}
    return Sampling(
        samples=total,
        confidence="no" if total == 0 else "low" if total < FEW_SAMPLES else "yes",
        stalls=_shares(reasons, total) if total else _average_stalls(action),
        lines=_line_information(spots.values()),
        hot_lines=_hot_lines(by_pc, executed, spots, sources, total),
    )


def _instances(metric: RawMetric | None) -> dict[int, int]:
    """Value by instruction address; empty for a metric without instances."""
    if metric is None or not metric.has_correlation_ids():
        return {}
    ids = metric.correlation_ids()
    return {int(ids.value(i)): int(metric.value(i) or 0) for i in range(metric.num_instances())}


def _samples_by_pc(action: Action) -> dict[int, Counter[str]]:
    """Samples by address and reason. Reasons differ between GPUs and versions, so they are found by their prefix."""
    by_pc: dict[int, Counter[str]] = {}
    for name in action.metric_names():
        if name.startswith(SAMPLE_PREFIX) and not name.endswith(NOT_ISSUED):
            reason = name.removeprefix(SAMPLE_PREFIX)
            for pc, count in _instances(action.metric_by_name(name)).items():
                by_pc.setdefault(pc, Counter())[reason] += count
    return by_pc


def _spot(action: Action, pc: int) -> Spot | None:
    info = action.source_info(pc)
    return (info.file_name(), info.line()) if info is not None and info.file_name() else None


def _line_information(
    spots: Iterable[Spot | None],
) -> Literal["yes", "no line information", "not collected"]:
    found = list(spots)
    if not found:
        return "not collected"
    return "yes" if any(found) else "no line information"


def _shares(counts: Counter[str], total: int, top: int | None = None) -> tuple[StallShare, ...]:
    """Largest stall reasons in percent of ``total``; issued samples are left out, for they are no stall."""
    stalls = [(reason, count) for reason, count in counts.items() if count > 0 and reason != ISSUED]
    stalls.sort(key=lambda item: (-item[1], item[0]))
    return tuple(StallShare(reason=reason, percent=100 * count / total) for reason, count in stalls[:top])


def _average_stalls(action: Action) -> tuple[StallShare, ...]:
    """Share of each reason in the cycles between two issues of a warp (section WarpStateStats)."""
    cycles: dict[str, float] = {}
    for name in action.metric_names():
        match = RATIO.fullmatch(name)
        value = read_number(action, name) if match else None
        if match and value:
            cycles[match["reason"]] = value
    total = sum(cycles.values())
    order = sorted(cycles, key=lambda reason: (-cycles[reason], reason))
    return tuple(
        StallShare(reason=reason, percent=100 * cycles[reason] / total)
        for reason in order
        if reason != ISSUED
    )


def _hot_lines(
    by_pc: Mapping[int, Counter[str]],
    executed: Mapping[int, int],
    spots: Mapping[int, Spot | None],
    sources: Mapping[str, str],
    total: int,
) -> tuple[HotLine, ...]:
    samples: dict[Spot, Counter[str]] = {}
    instructions: Counter[Spot] = Counter()
    for pc, spot in spots.items():
        if spot is not None:
            samples.setdefault(spot, Counter()).update(by_pc.get(pc, Counter()))
            instructions[spot] += executed.get(pc, 0)
    wanted = [spot for spot in samples if (samples[spot].total() if total else instructions[spot]) > 0]
    wanted.sort(key=lambda spot: (-samples[spot].total(), -instructions[spot], spot))
    texts = {file: text.splitlines() for file, text in sources.items()}
    lines = []
    for spot in wanted[:MAX_LINES]:
        file, line = spot
        count = samples[spot].total()
        text = texts.get(file, [])
        lines.append(
            HotLine(
                file=file,
                line=line,
                text=text[line - 1].rstrip() if 0 < line <= len(text) else "",
                samples=count,
                percent=100 * count / total if total else 0.0,
                stalls=_shares(samples[spot], count, TOP_STALLS) if count else (),
                instructions=float(instructions[spot]) if executed else None,
                own=is_own(file),
            )
        )
    return tuple(lines)
