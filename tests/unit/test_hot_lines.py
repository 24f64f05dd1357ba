"""Samples per source line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.profilers.hot_lines import is_own, sampling
from tachyon_tui.profilers.report import read_report

RECORDED = [
    ("cu_reduce-baseline", [("reduce.cu", 10, 87.0), ("reduce.cu", 8, 9.8), ("reduce.cu", 11, 2.7)]),
    ("cu_reduce-shared-tree", [("reduce.cu", 8, 47.2), ("reduce.cu", 6, 42.8), ("reduce.cu", 9, 5.5)]),
    ("cu_reduce-float4", [("reduce.cu", 8, 94.9), ("reduce.cu", 10, 4.4)]),
    (
        "cu_reduce-flat-named-sections",
        [("reduce.cu", 18, 92.7), ("reduce.cu", 15, 3.2), ("sm_30_intrinsics.hpp", 449, 1.3)],
    ),
    ("matmul-naive", [("matmul.cu", 15, 99.7)]),
]


def profile(reports: Path, file: str) -> KernelProfile:
    (kernel,) = read_report(reports / f"{file}.ncu-rep").kernels
    return kernel


@pytest.mark.parametrize(("file", "hottest"), RECORDED)
def test_recorded_hot_lines(reports: Path, file: str, hottest: list[tuple[str, int, float]]) -> None:
    kernel = profile(reports, file)
    found = [(Path(line.file).name, line.line, round(line.percent, 1)) for line in kernel.hot_lines]
    assert found[: len(hottest)] == hottest
    assert kernel.lines == "yes"
    assert kernel.sampled == "yes"
    assert sum(line.samples for line in kernel.hot_lines) == kernel.samples


def test_text_stalls_and_instructions_of_a_line(reports: Path) -> None:
    line = profile(reports, "cu_reduce-baseline").hot_lines[0]
    assert line.text.strip() == "atomicAdd(&out[row], in[i]);"
    assert line.stalls[0].reason == "long_scoreboard"
    assert line.stalls[0].percent == pytest.approx(94.7, abs=0.05)
    # 9 instructions of each of the 2^27 one-warp blocks
    assert line.instructions == 9 * 2**27
    assert line.own


def test_library_header_is_not_own_code(reports: Path) -> None:
    own = {
        Path(line.file).name: line.own for line in profile(reports, "cu_reduce-flat-named-sections").hot_lines
    }
    assert own["reduce.cu"]
    assert not own["sm_30_intrinsics.hpp"]


def test_kernel_stalls_are_shares_of_all_samples(reports: Path) -> None:
    stalls = profile(reports, "matmul-naive").stalls
    assert stalls[0].reason == "lg_throttle"
    assert stalls[0].percent == pytest.approx(77.9, abs=0.05)
    assert [stall.percent for stall in stalls] == sorted((stall.percent for stall in stalls), reverse=True)
    assert "selected" not in {stall.reason for stall in stalls}
    assert sum(stall.percent for stall in stalls) < 100


@pytest.mark.parametrize(
    ("file", "lines", "sampled"),
    [
        ("cu_reduce-flat-no-lineinfo", "no line information", "yes"),
        ("cu_reduce-flat-set-basic", "not collected", "no"),
    ],
)
def test_reports_without_lines(reports: Path, file: str, lines: str, sampled: str) -> None:
    kernel = profile(reports, file)
    assert (kernel.lines, kernel.sampled, kernel.hot_lines) == (lines, sampled, ())


class FakeMetric:
    """Stands for an `ncu_report` metric with one value per instruction address."""

    def __init__(self, values: Mapping[int, float], ids: bool = False) -> None:
        self._values = values
        self._ids = ids

    def value(self, instance: int | None = None, /) -> Any:
        if instance is None:
            return sum(self._values.values())
        return list(self._values if self._ids else self._values.values())[instance]

    def has_value(self) -> bool:
        return True

    def unit(self) -> str:
        return ""

    def num_instances(self) -> int:
        return len(self._values)

    def has_correlation_ids(self) -> bool:
        return bool(self._values)

    def correlation_ids(self) -> FakeMetric:
        return FakeMetric(self._values, ids=True)


class FakeSource:
    """Stands for `ncu_report.ISourceInfo`."""

    def __init__(self, file: str, line: int) -> None:
        self._file, self._line = file, line

    def file_name(self) -> str:
        return self._file

    def line(self) -> int:
        return self._line


class FakeAction:
    """Stands for an `ncu_report` action; ``spots`` maps addresses to file and line."""

    def __init__(self, metrics: Mapping[str, FakeMetric], spots: Mapping[int, tuple[str, int]]) -> None:
        self._metrics, self._spots = metrics, spots

    def name(self, _base: int, /) -> str:
        return "kernel"

    def metric_by_name(self, name: str, /) -> FakeMetric | None:
        return self._metrics.get(name)

    def metric_names(self) -> list[str]:
        return list(self._metrics)

    def source_info(self, pc: int, /) -> FakeSource | None:
        return FakeSource(*self._spots[pc]) if pc in self._spots else None

    def source_files(self) -> dict[str, str]:
        return {}

    def rule_results_as_dicts(self) -> list[dict[str, Any]]:
        return []


STALLED = "smsp__pcsamp_warps_issue_stalled_"


def test_addresses_of_one_line_are_added_and_unknown_reasons_found() -> None:
    action = FakeAction(
        {
            STALLED + "brand_new": FakeMetric({16: 3, 32: 5, 48: 2}),
            STALLED + "brand_new_not_issued": FakeMetric({16: 99}),
            STALLED + "selected": FakeMetric({16: 10}),
        },
        {16: ("a.cu", 2), 32: ("a.cu", 2)},
    )
    found = sampling(action, {"a.cu": "first\nsecond\n"})
    (line,) = found.hot_lines
    assert (line.samples, line.text, line.instructions) == (18, "second", None)
    assert line.percent == pytest.approx(90.0)
    assert found.samples == 20
    assert found.confidence == "low"
    assert [(stall.reason, stall.percent) for stall in found.stalls] == [("brand_new", 50.0)]


def test_line_beyond_the_embedded_text_has_none() -> None:
    action = FakeAction({STALLED + "wait": FakeMetric({1: 5})}, {1: ("a.cu", 9)})
    assert sampling(action, {"a.cu": "one line"}).hot_lines[0].text == ""


def test_without_samples_lines_are_ranked_by_instructions() -> None:
    action = FakeAction({"inst_executed": FakeMetric({1: 5, 2: 7})}, {1: ("a.cu", 1), 2: ("a.cu", 2)})
    found = sampling(action, {})
    assert [(line.line, line.instructions, line.percent) for line in found.hot_lines] == [
        (2, 7, 0),
        (1, 5, 0),
    ]
    assert found.confidence == "no"


def test_without_samples_stalls_come_from_the_averages() -> None:
    name = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    ratios = {"wait": 3.0, "gmma": 5.0, "selected": 2.0}
    action = FakeAction({name.format(reason): FakeMetric({0: value}) for reason, value in ratios.items()}, {})
    assert [(stall.reason, stall.percent) for stall in sampling(action, {}).stalls] == [
        ("gmma", 50),
        ("wait", 30),
    ]


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("src/kernels/reduce.cu", True),
        ("/home/user/cuda/include/reduce.cuh", True),
        ("/opt/work/project/a.cu", True),
        (r"C:\work\a.cu", True),
        ("/usr/include/c++/13/cmath", False),
        ("/usr/local/cuda-13.0/targets/x86_64-linux/include/sm_30_intrinsics.hpp", False),
        ("/home/user/env/lib/python3.12/site-packages/triton/language/standard.py", False),
        ("third_party/cutlass/include/cutlass/gemm/kernel.h", False),
        ("/opt/conda/targets/x86_64-linux/include/curand_kernel.h", False),
        (r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v13.0\include\cuda_fp16.hpp", False),
    ],
)
def test_own_code(file: str, own: bool) -> None:
    assert is_own(file) is own
