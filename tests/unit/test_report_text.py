"""A report of ncu as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tachyon_tui.core.profile import (
    Advice,
    Floor,
    FloorTerm,
    HotLine,
    KernelProfile,
    Metric,
    Report,
    StallShare,
)
from tachyon_tui.frontends.report import report_json, report_text, select
from tachyon_tui.profilers.report import read_report


def kernel(**changes: Any) -> KernelProfile:
    figures: dict[str, float] = {
        "compute_percent": 5.569,
        "memory_percent": 12.0,
        "dram_percent": 0.142,
        "dram_bandwidth": 6.8e9,
        "occupancy_percent": 12.69,
        "theoretical_percent": 50.0,
        "registers": 18.0,
        "shared_bytes": 1024.0,
    }
    values: dict[str, Any] = {
        "name": "reduce_kernel(float const*, float*, int)",
        "function": "reduce_kernel",
        "grid": (1048576, 1, 1),
        "block": (128, 1, 1),
        "device": "NVIDIA H200",
        "compute_capability": "9.0",
        "gpu_time_ms": 80.681696,
        "metrics": {key: Metric(key=key, label=key, value=value) for key, value in figures.items()},
        "stalls": (StallShare(reason="lg_throttle", percent=80.0), StallShare(reason="wait", percent=20.0)),
        "occupancy_limiters": ("warps", "blocks"),
        "samples": 3262152,
        "sampled": "yes",
        "lines": "yes",
        "hot_lines": (
            HotLine(
                file="/home/u/reduce.cu",
                line=10,
                text="\tatomicAdd(&out[r], smem[tid]);",
                percent=87.04,
                stalls=(StallShare(reason="lg_throttle", percent=91.0),),
            ),
            HotLine(file="/usr/include/sm_30_intrinsics.hpp", line=449, percent=1.3, own=False),
        ),
        "advice": (
            Advice(
                rule="A", title="Small", message="a", kind="optimization", speedup_percent=1.0, scope="global"
            ),
            Advice(
                rule="B",
                title="Large",
                message="b " * 100,
                kind="warning",
                speedup_percent=40.0,
                scope="local",
            ),
            Advice(rule="C", title="Fine", message="c", kind="ok"),
        ),
        "floor": Floor(
            ms=0.1138,
            binding="memory",
            terms=(
                FloorTerm(name="memory", ms=0.1138, basis="547 MB / 4.8 TB/s"),
                FloorTerm(name="launch", ms=0.002, basis="the shortest kernel there is"),
            ),
        ),
    }
    return KernelProfile(**(values | changes))


def text(*kernels: KernelProfile, width: int = 100) -> str:
    return report_text(Report(path="x.ncu-rep", kernels=kernels), width)


def test_one_kernel() -> None:
    shown = text(kernel())
    for line in (
        "NVIDIA H200 (9.0)",
        "GPU time         80.68ms (under ncu)",
        "Speed of light   compute 5.6%, memory 12.0%",
        "DRAM throughput  0.1% (6.80 GB/s)",
        "Occupancy        12.7% achieved of 50.0% possible, limited by warps, blocks",
        "Registers        18 per thread",
        "Shared memory    1.0 KiB per block",
        "Grid, block      (1048576, 1, 1), (128, 1, 1)",
        "Stall reasons (3 262 152 samples)",
        "  lg_throttle   80.0%  " + "█" * 24,
        "  wait          20.0%  " + "█" * 6,
        "  reduce.cu:10               87.0%  lg_throttle 91.0%",
        "      atomicAdd(&out[r], smem[tid]);",
        "Floor 0.1138ms, memory bound; now 709.0 times that (for the work of this version)",
        "  memory  0.1138ms  547 MB / 4.8 TB/s",
        "  launch  0.0020ms  the shortest kernel there is",
        "NVIDIA rule says: Large (up to 40.0%, locally)",
        "NVIDIA rule says: Small (up to 1.0%)",
    ):
        assert line in shown.splitlines()
    assert "(library)" in shown
    assert "Fine" not in shown
    assert shown.index("Large") < shown.index("Small")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits(width: int) -> None:
    long = kernel(
        name="void k<" + "int, " * 100 + ">()",
        hot_lines=(HotLine(file="归约" * 50 + ".cu", line=1, text="x" * 500, percent=1.0),),
    )
    assert max(cell_len(line) for line in text(long, width=width).splitlines()) <= width


def test_what_was_not_collected_is_said_and_never_zero() -> None:
    bare = KernelProfile(name="k()")
    shown = text(bare)
    assert "compute n/a, memory n/a" in shown
    assert "Stall reasons: not collected" in shown
    assert "0.0" not in shown
    assert "Hot lines" not in shown
    assert "Floor" not in shown


def test_without_line_information() -> None:
    assert "compile with -lineinfo" in text(kernel(lines="no line information", hot_lines=()))


def test_few_samples_are_called_rough() -> None:
    assert "the shares are rough" in text(kernel(sampled="low"))


def test_a_given_floor_is_no_floor_of_the_version() -> None:
    given = kernel().model_copy(update={"floor": Floor(ms=1.0, binding="memory", terms=(), given_bytes=True)})
    assert "Floor 1.0000ms" not in text(given)
    assert "Floor 1.00ms, memory bound; now 80.7 times that" in text(given).splitlines()


def test_launches_of_a_kernel_stand_together() -> None:
    launches = [kernel(gpu_time_ms=ms) for ms in (1.0, 3.0, 2.0)]
    shown = text(launches[0], kernel(name="other()"), *launches[1:])
    assert shown.count("reduce_kernel(float") == 1
    assert "  1  3.00ms    (1048576, 1, 1)  (128, 1, 1)" in shown.splitlines()
    assert "GPU time         3.00ms (under ncu)" in shown


def test_text_from_the_report_is_plain() -> None:
    evil = kernel(
        name="k\x1b]0;t\x07()",
        device="\x1b[2J",
        hot_lines=(HotLine(file="\x1b[31ma.cu", line=1, text="\u202e", percent=1.0),),
        advice=(Advice(rule="A", title="\x9b1m", message="[b]\x07", kind="error"),),
    )
    shown = text(evil)
    assert all(line.isprintable() for line in shown.splitlines())
    assert "[b]" in shown


def test_select_by_a_literal_part_of_the_name() -> None:
    report = Report(path="x", kernels=(kernel(name="a<int>(float)"), kernel(name="b()")))
    assert [k.name for k in select(report, "a<int>").kernels] == ["a<int>(float)"]
    assert select(report, "a.*").kernels == ()
    assert len(select(report, "").kernels) == 2


def test_json() -> None:
    nan = Metric(key="x", label="x", value=float("nan"))
    report = Report(path="x", kernels=(kernel(name="k\x7f归\x1b", metrics={"x": nan}),))
    written = report_json(report)
    assert written.isascii()
    assert "\x7f" not in written
    data = json.loads(written, parse_constant=pytest.fail)
    assert data["kernels"][0]["name"] == "k\x7f归\x1b"
    assert data["kernels"][0]["metrics"]["x"]["value"] is None
    assert data["kernels"][0]["gpu_time_ms"] == 80.681696


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("cu_reduce-baseline", ["GPU time         80.68ms (under ncu)", "  reduce.cu:10   87.0%"]),
        ("cu_reduce-flat-set-basic", ["Stall reasons: not collected (ncu --set full has them)."]),
        ("cu_reduce-flat-no-lineinfo", ["Hot lines: no line information; compile with -lineinfo."]),
        ("transpose-time-only-6-launches", ["  3  0.9961ms  (256, 1024, 1)  (32, 8, 1)"]),
    ],
)
def test_recorded_reports(reports: Path, name: str, lines: list[str]) -> None:
    shown = report_text(read_report(reports / f"{name}.ncu-rep"), 80).splitlines()
    for line in lines:
        assert any(found.startswith(line) for found in shown), line
    assert max(cell_len(line) for line in shown) <= 80 + len(str(reports))
