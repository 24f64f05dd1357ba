"""A report of ncu as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.cells import cell_len

from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import Advice, FloorTerm, HotLine, KernelProfile, Report
from tachyon_tui.core.units import NOT_AVAILABLE, bytes_text, count_text, ms_text, percent_text, rate_text
from tachyon_tui.frontends.jsonl import finite
from tachyon_tui.frontends.text import clean, columns, one_line, wrap

BAR_CELLS = 24
STALLS = 8
LINES = 10


def select(report: Report, kernel: str) -> Report:
    """The report with only the kernels whose demangled name holds ``kernel``; all of them when it is empty."""
    return report.model_copy(update={"kernels": tuple(k for k in report.kernels if kernel in k.name)})


def report_json(report: Report) -> str:
    """The report as one indented JSON document in ASCII; what was not collected is null."""
    return json.dumps(finite(report.model_dump(mode="json")), indent=2, allow_nan=False).replace(
        "\x7f", "\\u007f"
    )


def report_text(report: Report, width: int = 100) -> str:
    """The report as plain lines of at most ``width`` cells (60 at least)."""
    width = max(width, 60)
    lines = [clean(report.path, width)]
    lines += [_("Warning: {text}").format(text=one_line(text, width)) for text in report.warnings]
    for group in _groups(report.kernels):
        lines += ["", *_kernel(group, width)]
    return "\n".join(part for line in lines for part in _fit(line, width))


def _fit(line: str, width: int) -> list[str]:
    """A line that is too wide, broken behind its own indentation."""
    if cell_len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return [indent + part for part in wrap(line.lstrip(), width - len(indent), "    ")]


def _groups(kernels: Sequence[KernelProfile]) -> list[list[KernelProfile]]:
    """Launches of the same kernel together, in the order of their first launch."""
    groups: dict[str, list[KernelProfile]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.name, []).append(kernel)
    return list(groups.values())


def _kernel(launches: list[KernelProfile], width: int) -> list[str]:
    """One kernel; of several launches the longest in full, and all of them in a table."""
    kernel = max(launches, key=lambda k: k.gpu_time_ms or 0.0)
    lines = [one_line(kernel.name, width), "─" * min(width, max(cell_len(one_line(kernel.name, width)), 20))]
    if kernel.device:
        capability = f" ({kernel.compute_capability})" if kernel.compute_capability else ""
        lines.append(one_line(kernel.device, 60) + capability)
    if len(launches) > 1:
        lines += [*_launch_table(launches), _("The longest launch:")]
    lines += _figures(kernel)
    lines += _stalls(kernel)
    lines += _hot_lines(kernel, width)
    lines += _floor(kernel, width)
    lines += _advice(kernel.advice, width)
    return lines


def _launch_table(launches: list[KernelProfile]) -> list[str]:
    rows = [("#", _("GPU time"), _("grid"), _("block"))]
    rows += [
        (str(number), ms_text(k.gpu_time_ms), _dims(k.grid), _dims(k.block))
        for number, k in enumerate(launches)
    ]
    return ["  " + line for line in columns(rows)] + [""]


def _dims(dims: tuple[int, int, int]) -> str:
    return f"({', '.join(str(n) for n in dims)})" if any(dims) else NOT_AVAILABLE


def _value(kernel: KernelProfile, key: str) -> float | None:
    metric = kernel.metrics.get(key)
    return metric.value if metric is not None and isinstance(metric.value, float) else None


def _figures(kernel: KernelProfile) -> list[str]:
    def percent(key: str) -> str:
        return percent_text(_value(kernel, key))

    limiters = ", ".join(kernel.occupancy_limiters)
    occupancy = _("{achieved} achieved of {possible} possible").format(
        achieved=percent("occupancy_percent"), possible=percent("theoretical_percent")
    )
    if limiters:
        occupancy += ", " + _("limited by {what}").format(what=limiters)
    bandwidth = _value(kernel, "dram_bandwidth")
    dram = percent("dram_percent")
    if bandwidth is not None:
        dram += f" ({rate_text(bandwidth)})"
    rows = [
        (_("GPU time"), ms_text(kernel.gpu_time_ms) + " " + _("(under ncu)")),
        (
            _("Speed of light"),
            _("compute {compute}, memory {memory}").format(
                compute=percent("compute_percent"), memory=percent("memory_percent")
            ),
        ),
        (_("DRAM throughput"), dram),
        (_("Occupancy"), occupancy),
        (_("Registers"), _("{count} per thread").format(count=count_text(_value(kernel, "registers")))),
        (_("Shared memory"), _("{size} per block").format(size=bytes_text(_value(kernel, "shared_bytes")))),
        (_("Grid, block"), f"{_dims(kernel.grid)}, {_dims(kernel.block)}"),
    ]
    return columns(rows)


def _stalls(kernel: KernelProfile) -> list[str]:
    if not kernel.stalls:
        return ["", _("Stall reasons: not collected (ncu --set full has them).")]
    title = _("Stall reasons ({count} samples)").format(count=count_text(kernel.samples))
    if kernel.sampled == "low":
        title += " " + _("few samples: the shares are rough")
    most = kernel.stalls[0].percent or 1.0
    rows = [
        (
            clean(stall.reason, 30),
            f"{percent_text(stall.percent):>6}",
            "█" * round(stall.percent / most * BAR_CELLS),
        )
        for stall in kernel.stalls[:STALLS]
    ]
    return ["", title, *("  " + line for line in columns(rows))]


def _hot_lines(kernel: KernelProfile, width: int) -> list[str]:
    if kernel.lines == "not collected" or (kernel.lines == "yes" and not kernel.hot_lines):
        return []
    if kernel.lines == "no line information":
        return ["", _("Hot lines: no line information; compile with -lineinfo.")]
    rows = []
    for line in kernel.hot_lines[:LINES]:
        place = f"{one_line(line.file.rsplit('/', 1)[-1], 40)}:{line.line}"
        rows.append((place, f"{percent_text(line.percent):>6}", _top_stall(line)))
    lines = ["", _("Hot lines")]
    for head, line in zip(columns(rows), kernel.hot_lines, strict=False):
        lines.append("  " + head + ("" if line.own else "  " + _("(library)")))
        if line.text.strip():
            lines.append("      " + one_line(line.text, width - 6))
    return lines


def _top_stall(line: HotLine) -> str:
    if not line.stalls:
        return ""
    top = line.stalls[0]
    return f"{clean(top.reason, 30)} {percent_text(top.percent)}"


def _floor(kernel: KernelProfile, width: int) -> list[str]:
    floor = kernel.floor
    if floor is None:
        return []
    title = _("Floor {ms}, {binding} bound").format(ms=ms_text(floor.ms), binding=floor.binding)
    if kernel.gpu_time_ms and floor.ms > 0:
        title += "; " + _("now {factor:.1f} times that").format(factor=kernel.gpu_time_ms / floor.ms)
    if not floor.given_bytes:
        title += " " + _("(for the work of this version)")
    rows = [(term.name, ms_text(term.ms), _basis(term, width - 30)) for term in floor.terms]
    return ["", title, *("  " + line for line in columns(rows))]


def _basis(term: FloorTerm, cells: int) -> str:
    return one_line(term.basis, cells)


def _advice(advice: Sequence[Advice], width: int) -> list[str]:
    lines: list[str] = []
    ranked = sorted(
        (item for item in advice if item.kind != "ok"),
        key=lambda item: item.speedup_percent or 0.0,
        reverse=True,
    )
    for item in ranked:
        estimate = ""
        if item.speedup_percent is not None:
            share = percent_text(item.speedup_percent)
            estimate = " " + (
                _("(up to {share}, locally)").format(share=share)
                if item.scope == "local"
                else _("(up to {share})").format(share=share)
            )
        title = _("NVIDIA rule says: {title}").format(title=one_line(item.title, 80)) + estimate
        lines += [title, *(f"  {line}" for line in wrap(one_line(item.message, 4000), width - 2))]
    return ["", *lines] if lines else []
