"""What the agent is shown, as text: metrics, stall reasons, floor, source with hot lines, comparison, notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import PurePath

from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import Floor, HotLine, KernelProfile, Metric
from tachyon_tui.core.units import bytes_text, count_text, ms_text, percent_text

SUMMARY_KEYS = (
    "compute_percent",
    "memory_percent",
    "dram_percent",
    "l1_percent",
    "l2_percent",
    "l1_hit_percent",
    "l2_hit_percent",
    "dram_read_bytes",
    "dram_write_bytes",
    "dram_bandwidth",
    "occupancy_percent",
    "theoretical_percent",
    "waves",
    "registers",
    "shared_bytes",
    "issue_percent",
    "eligible_warps",
    "cycles_per_issue",
    "lanes_active",
    "load_sectors",
    "store_sectors",
    "load_bytes_used",
    "uncoalesced_percent",
    "bank_conflict_percent",
    "shared_excess_percent",
    "local_loads",
    "local_stores",
    "instructions",
)
WHOLE_FILE_LINES = 400
CONTEXT_LINES = 12
HOT_PERCENT = 0.5
MAX_ADVICE = 6


@dataclass(frozen=True)
class RoundNote:
    """One earlier round in the notebook."""

    number: int
    state: str
    tried: str
    """The agent's own words."""
    verdict: str
    """What the engine found: numbers and reason."""
    edits: str = ""
    """Which files changed, by how many lines."""

    def text(self) -> str:
        """The entry as the agent reads it."""
        lines = [f"#{self.number} {self.state}: {self.verdict}"]
        if self.edits:
            lines.append(f"  {_('edited')}: {self.edits}")
        if self.tried:
            lines.append(f"  {_('tried (in your own words)')}: {self.tried}")
        return "\n".join(lines)


def metric_text(metric: Metric) -> str:
    """A metric's value; the unit is written where the label does not say it already."""
    value = metric.value
    if value is None:
        return f"{_('n/a')} ({metric.note})" if metric.note else _("n/a")
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return _("n/a")
    match metric.unit:
        case "%":
            return percent_text(value)
        case "ns":
            return ms_text(value / 1e6)
        case "byte" | "byte/block":
            return bytes_text(value)
        case "byte/s":
            return f"{value / 1e9:.1f} GB/s"
        case "hz":
            return f"{value / 1e6:.0f} MHz"
    return count_text(value) if value >= 1000 or value == int(value) else f"{value:.2f}"


def floor_text(floor: Floor | None) -> str:
    """The floor in one line, labelled as what it is."""
    if floor is None:
        return _("floor: not known")
    of = (
        _("the bytes any correct version must move")
        if floor.given_bytes
        else _("this version's own work; a version that does less may go below it")
    )
    terms = ", ".join(f"{term.name} {ms_text(term.ms)}" for term in floor.terms)
    return _("floor: {ms}, bound by {binding} ({terms}); it is the floor of {of}").format(
        ms=ms_text(floor.ms), binding=floor.binding, terms=terms, of=of
    )


def kernel_text(profile: KernelProfile) -> str:
    """One kernel's diagnosis: time, metrics, stalls, floor, advice."""
    lines = [
        f"## {profile.name}",
        f"grid {profile.grid}, block {profile.block}, {profile.device}",
        _("GPU time under ncu (not comparable with timed runs): {ms}").format(
            ms=ms_text(profile.gpu_time_ms)
        ),
        floor_text(profile.floor),
    ]
    for key in SUMMARY_KEYS:
        metric = profile.metrics.get(key)
        if metric is not None and metric.value is not None:
            lines.append(f"- {metric.label}: {metric_text(metric)}")
    if profile.occupancy_limiters:
        lines.append(f"- {_('occupancy limited by')}: {', '.join(profile.occupancy_limiters)}")
    if profile.stalls:
        top = ", ".join(f"{s.reason} {percent_text(s.percent)}" for s in profile.stalls[:6])
        lines.append(f"- {_('warp samples by stall reason')}: {top}")
    if profile.sampled == "low":
        lines.append(f"- {_('few samples: shares are rough')}")
    for line in profile.hot_lines[:8]:
        lines.append(f"- {_('hot line')} {hot_line_text(line)}")
    if profile.lines == "no line information":
        lines.append(f"- {_('built without -lineinfo: no hot lines')}")
    for advice in [a for a in profile.advice if a.kind in ("optimization", "warning")][:MAX_ADVICE]:
        gain = f" ({_('estimated')} {percent_text(advice.speedup_percent)})" if advice.speedup_percent else ""
        lines.append(f"- {_('NVIDIA rule says')}: {advice.title}{gain}: {advice.message[:300]}")
    return "\n".join(lines)


def hot_line_text(line: HotLine) -> str:
    """``reduce.cu:10 87.0 % (long_scoreboard 93.1%)  atomicAdd(...)``."""
    stalls = ", ".join(f"{s.reason} {percent_text(s.percent)}" for s in line.stalls[:2])
    where = PurePath(line.file).name
    library = "" if line.own else f" [{_('library')}]"
    return f"{where}:{line.line} {percent_text(line.percent)} ({stalls}){library}  {line.text.strip()}"


def match_lines(path: str, profiles: Sequence[KernelProfile]) -> dict[int, HotLine]:
    """Hot lines of a file of the project, by line; the compiler's path may be absolute or relative."""
    found: dict[int, HotLine] = {}
    parts = PurePath(path).parts
    for profile in profiles:
        for line in profile.hot_lines:
            theirs = PurePath(line.file).parts
            common = min(len(parts), len(theirs))
            if parts[-common:] == theirs[-common:] and (
                line.line not in found or line.percent > found[line.line].percent
            ):
                found[line.line] = line
    return found


def source_text(path: str, text: str, profiles: Sequence[KernelProfile], start: int = 0, end: int = 0) -> str:
    """Numbered source with the share of samples and the top stall reason beside hot lines.

    ``start`` and ``end`` are 1-based and inclusive; 0 means the whole file, or, of a long one, what lies
    around its hot lines.
    """
    hot = match_lines(path, profiles)
    lines = text.splitlines()
    wanted = _wanted(len(lines), hot, start, end)
    shown = [f"=== {path} ({len(lines)} {_('lines')})"]
    last = 0
    for number in wanted:
        if number != last + 1:
            shown.append(f"      … {_('lines')} {last + 1}-{number - 1}")
        last = number
        mark = hot.get(number)
        gutter = ""
        if mark is not None and mark.percent >= HOT_PERCENT:
            stall = mark.stalls[0].reason if mark.stalls else ""
            gutter = f"{percent_text(mark.percent)} {stall}"
        shown.append(f"{number:5d} |{gutter:>24} | {lines[number - 1]}")
    if last < len(lines):
        shown.append(f"      … {_('lines')} {last + 1}-{len(lines)}")
    return "\n".join(shown)


def _wanted(count: int, hot: Mapping[int, HotLine], start: int, end: int) -> list[int]:
    if start or end:
        low = max(1, start or 1)
        high = min(count, end or count, low + 2 * WHOLE_FILE_LINES)
        return list(range(low, high + 1))
    if count <= WHOLE_FILE_LINES:
        return list(range(1, count + 1))
    wanted: set[int] = set(range(1, min(count, 40) + 1))
    for number in sorted(hot, key=lambda n: -hot[n].percent)[:10]:
        wanted.update(range(max(1, number - CONTEXT_LINES), min(count, number + CONTEXT_LINES) + 1))
    return sorted(wanted)


COMPARED = (
    "gpu_time",
    "compute_percent",
    "memory_percent",
    "dram_percent",
    "occupancy_percent",
    "registers",
    "shared_bytes",
    "dram_bytes",
    "instructions",
    "issue_percent",
)


def comparison(columns: Mapping[str, Sequence[KernelProfile]]) -> str:
    """Diagnoses side by side, the heaviest kernel of each; columns without one are left out."""
    known = {name: profiles[0] for name, profiles in columns.items() if profiles}
    if not known:
        return ""
    rows = [["", *known]]
    for key in COMPARED:
        metrics = [profile.metrics.get(key) for profile in known.values()]
        present = [m for m in metrics if m is not None]
        if present:
            rows.append([present[0].label, *(metric_text(m) if m else _("n/a") for m in metrics)])
    stalls = [
        ", ".join(f"{s.reason} {percent_text(s.percent)}" for s in profile.stalls[:2])
        for profile in known.values()
    ]
    rows.append([_("top stall reasons"), *stalls])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )
