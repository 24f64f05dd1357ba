"""The catalogue: fallbacks, derivations, and the difference between absent and zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tachyon_tui.profilers.metrics import CATALOGUE, collect, read_value


class FakeMetric:
    """Stands for `ncu_report.IMetric` without instances."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self, _instance: int | None = None, /) -> Any:
        return self._value

    def has_value(self) -> bool:
        return self._value is not None

    def unit(self) -> str:
        return ""

    def num_instances(self) -> int:
        return 0

    def has_correlation_ids(self) -> bool:
        return False

    def correlation_ids(self) -> FakeMetric:
        raise LookupError


class FakeAction:
    """Stands for `ncu_report.IAction` with the given metrics."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._metrics = {name: FakeMetric(value) for name, value in values.items()}

    def name(self, _base: int, /) -> str | None:
        return "kernel"

    def metric_by_name(self, name: str, /) -> FakeMetric | None:
        return self._metrics.get(name)

    def metric_names(self) -> list[str]:
        return list(self._metrics)

    def source_info(self, _pc: int, /) -> None:
        return None

    def source_files(self) -> dict[str, str]:
        return {}

    def rule_results_as_dicts(self) -> list[dict[str, Any]]:
        return []


def figure(values: Mapping[str, Any], key: str) -> float | str | None:
    return collect(FakeAction(values))[key].value


@pytest.mark.parametrize("value", [None, math.nan, math.inf, ""])
def test_no_value_is_absent_not_zero(value: Any) -> None:
    assert read_value(FakeAction({"m": value}), "m") is None


def test_zero_is_a_value() -> None:
    assert figure({"sm__throughput.avg.pct_of_peak_sustained_elapsed": 0.0}, "compute_percent") == 0.0


def test_keys_are_unique() -> None:
    keys = [entry.key for entry in CATALOGUE]
    assert len(keys) == len(set(keys))


def test_every_absent_figure_says_why() -> None:
    metrics = collect(FakeAction({}))
    assert all(metric.value is None for metric in metrics.values())
    assert [key for key, metric in metrics.items() if not metric.note] == []


def test_absent_figure_names_the_set_that_has_it() -> None:
    note = collect(FakeAction({}))["issue_percent"].note
    assert "SchedulerStats" in note
    assert "full" in note


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("gpu_time", {"gpu__time_duration.avg": 5.0}, 5.0),
        ("gpu_time", {"gpu__time_duration.sum": math.nan, "gpu__time_duration.avg": 5.0}, 5.0),
        ("gpu_time", {"gpc__cycles_elapsed.max": 100, "sm__cycles_elapsed.avg.per_second": 1e9}, 100.0),
        ("dram_read_bytes", {"dram__bytes_op_read.sum": 64}, 64.0),
        ("dram_read_bytes", {"dram__sectors_read.sum": 3}, 96.0),
        ("dram_bytes", {"dram__bytes_read.sum": 10, "dram__bytes_write.sum": 5}, 15.0),
        ("dram_bytes", {"dram__bytes_op_read.sum": 10, "dram__bytes_op_write.sum": 5}, 15.0),
        ("dram_bytes", {"dram__bytes.sum.per_second": 2e9, "gpu__time_duration.sum": 1e9}, 2e9),
        ("dram_bytes", {"lts__t_sectors_aperture_sysmem_lookup_miss.sum": 2}, 64.0),
        ("dram_bytes", {"dram__bytes_read.sum": 10}, None),
        ("l2_bytes", {"lts__t_sectors.sum": 2}, 64.0),
        ("sm_count", {"device__attribute_multiprocessor_count": 108}, 108.0),
        ("issue_percent", {"smsp__issue_active.avg.per_cycle_active": 0.5}, 50.0),
        (
            "tensor_percent",
            {"sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active": 7},
            7.0,
        ),
        ("threads", {"launch__grid_size": 4, "launch__block_size": 32}, 128.0),
        (
            "load_sectors",
            {
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 8,
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 2,
            },
            4.0,
        ),
    ],
)
def test_fallbacks(key: str, values: dict[str, Any], expected: float | None) -> None:
    assert figure(values, key) == pytest.approx(expected)


def test_dram_bytes_from_share_of_peak() -> None:
    # 50 % of 320 GB/s (256 bit at 5 GHz, double data rate) for 1 ms
    values = {
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 50.0,
        "gpu__time_duration.sum": 1e6,
        "device__attribute_fb_bus_width": 256,
        "device__attribute_max_mem_frequency_khz": 5_000_000,
    }
    assert figure(values, "dram_bytes") == pytest.approx(160e6)


def test_no_division_by_zero_requests() -> None:
    values = {
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 0,
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 0,
    }
    metric = collect(FakeAction(values))["load_sectors"]
    assert metric.value is None
    assert metric.note == "the kernel made no global loads"


@pytest.mark.parametrize(
    ("capability", "sms", "hz", "tflops"),
    # T4, A100-40, RTX 3080 at the clocks given
    [((7, 5), 40, 1.59e9, 8.14), ((8, 0), 108, 1.41e9, 19.49), ((8, 6), 68, 1.71e9, 29.77)],
)
def test_fp32_peak_without_the_roofline_section(
    capability: tuple[int, int], sms: int, hz: float, tflops: float
) -> None:
    values = {
        "device__attribute_compute_capability_major": capability[0],
        "device__attribute_compute_capability_minor": capability[1],
        "launch__sm_count": sms,
        "gpc__cycles_elapsed.avg.per_second": hz,
    }
    assert figure(values, "fp32_peak") == pytest.approx(tflops * 1e12, rel=0.001)


def test_fp32_rate_counts_a_fused_multiply_add_twice() -> None:
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
    values = {
        name.format("fadd"): 100.0,
        name.format("fmul"): 40.6,
        name.format("ffma"): 1406.4,
        "gpc__cycles_elapsed.avg.per_second": 1.0908e9,
    }
    assert figure(values, "fp32_rate") == pytest.approx(3.2216e12, rel=1e-4)
