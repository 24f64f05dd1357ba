"""The physical floor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachyon_tui.core.profile import KernelProfile, Metric
from tachyon_tui.profilers.report import read_report
from tachyon_tui.profilers.roofline import floor

ROWS, COLUMNS = 2**20, 128
COMPULSORY = ROWS * COLUMNS * 4 + ROWS * 4
REDUCTIONS = [
    "baseline",
    "shared-tree",
    "float4",
    "flat-named-sections",
    "flat-no-lineinfo",
    "flat-set-basic",
]


def profile(**figures: float) -> KernelProfile:
    metrics = {key: Metric(key=key, label=key, value=value) for key, value in figures.items()}
    return KernelProfile(name="k", metrics=metrics, gpu_time_ms=1.0)


def test_compulsory_bytes_of_the_row_reduction() -> None:
    assert COMPULSORY == 541_065_216


@pytest.mark.parametrize("version", REDUCTIONS)
def test_given_bytes_bind_whatever_the_version_does(reports: Path, version: str) -> None:
    (kernel,) = read_report(reports / f"cu_reduce-{version}.ncu-rep").kernels
    found = floor(kernel, given_bytes=COMPULSORY)
    assert found is not None
    assert found.ms == pytest.approx(0.113, rel=0.01)
    assert found.binding == "memory"
    assert found.given_bytes
    assert kernel.gpu_time_ms is not None
    assert found.ms < kernel.gpu_time_ms


@pytest.mark.parametrize(
    ("file", "binding", "ms"),
    [
        ("cu_reduce-baseline", "issue", 4.494),
        ("cu_reduce-shared-tree", "issue", 0.4505),
        ("cu_reduce-flat-named-sections", "memory", 0.1124),
        ("matmul-naive", "issue", 0.1480),
    ],
)
def test_floor_of_the_version_is_below_its_time(reports: Path, file: str, binding: str, ms: float) -> None:
    (kernel,) = read_report(reports / f"{file}.ncu-rep").kernels
    assert kernel.floor is not None
    assert kernel.gpu_time_ms is not None
    assert (kernel.floor.binding, kernel.floor.given_bytes) == (binding, False)
    assert kernel.floor.ms == pytest.approx(ms, rel=1e-3)
    assert kernel.floor.ms < kernel.gpu_time_ms
    assert kernel.floor.ms == max(term.ms for term in kernel.floor.terms)


def test_flops_of_the_matrix_product(reports: Path) -> None:
    # 2 n^3 operations for n = 1024, at 2 x 16896 FP32 operations a cycle
    (kernel,) = read_report(reports / "matmul-naive.ncu-rep").kernels
    assert kernel.metrics["fp32_flops"].value == pytest.approx(2 * 1024**3, rel=1e-3)
    assert kernel.floor is not None
    compute = next(term for term in kernel.floor.terms if term.name == "compute")
    assert compute.ms == pytest.approx(2 * 1024**3 / (2 * 16896 * 1.98e9) * 1e3, rel=2e-3)


def test_terms() -> None:
    found = floor(
        profile(
            dram_peak=1e12,
            dram_bytes=1e9,
            fp32_flops=4e9,
            fp32_peak=1e12,
            fp64_flops=0.0,
            fp64_peak=5e11,
            instructions=1e6,
            sm_clock=1e9,
            sm_count=10.0,
        )
    )
    assert found is not None
    assert {term.name: term.ms for term in found.terms} == pytest.approx(
        {"memory": 1.0, "compute": 4.0, "issue": 0.025, "launch": 0.002}
    )
    assert (found.binding, found.ms) == ("compute", 4.0)
    assert all(term.basis for term in found.terms)


def test_measured_terms_do_not_bind_with_given_bytes() -> None:
    kernel = profile(dram_peak=1e12, fp32_flops=4e9, fp32_peak=1e12)
    found = floor(kernel, given_bytes=1e9)
    assert found is not None
    assert (found.binding, found.ms) == ("memory", 1.0)
    both = floor(kernel, given_bytes=1e9, given_flops=2e9)
    assert both is not None
    assert (both.binding, both.ms) == ("compute", 2.0)


def test_given_flops_alone_replace_measured_ones() -> None:
    found = floor(profile(fp32_flops=4e9, fp32_peak=1e12), given_flops=1e9)
    assert found is not None
    assert (found.binding, found.ms, found.given_bytes) == ("compute", 1.0, False)


def test_given_flops_take_the_precision_of_the_kernel() -> None:
    found = floor(profile(fp32_flops=1.0, fp32_peak=2e12, fp64_flops=9.0, fp64_peak=1e12), given_flops=1e9)
    assert found is not None
    assert found.ms == pytest.approx(1.0)


def test_tensor_pipe_busy_share_is_a_compute_term() -> None:
    found = floor(profile(tensor_elapsed_percent=40.0))
    assert found is not None
    assert found.binding == "compute"
    assert found.ms == pytest.approx(0.4)


def test_nothing_measured_has_no_floor() -> None:
    assert floor(profile()) is None
    assert floor(profile(dram_peak=1e12)) is None


def test_given_bytes_without_a_known_peak_are_not_claimed() -> None:
    found = floor(profile(instructions=1e6, sm_clock=1e9, sm_count=10.0), given_bytes=1e9)
    assert found is not None
    assert not found.given_bytes
