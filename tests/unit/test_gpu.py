"""The look at the GPU, with a fake pynvml in the place of NVIDIA's binding."""

from __future__ import annotations

import dataclasses
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

from tachyon_tui.profilers import gpu
from tachyon_tui.profilers.gpu import GpuMonitor, GpuState


class FakeNvmlError(Exception):
    """The binding's error."""


class FakeNvml(types.ModuleType):
    """Two GPUs; ``broken`` names the functions that raise, ``missing`` those that the binding lacks."""

    NVMLError = FakeNvmlError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.broken: set[str] = set()
        self.missing: set[str] = set()
        self.answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": self.by_index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: ("mig", uuid),
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda handle: 1,
            "nvmlDeviceGetName": lambda h: b"Fake GPU",
            "nvmlDeviceGetUUID": lambda h: ["GPU-aaaa-0", "GPU-bbbb-1"][h],
            "nvmlDeviceGetIndex": lambda h: h,
            "nvmlDeviceGetClockInfo": lambda h, kind: {1: 1400, 2: 2600}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda h, kind: 1980,
            "nvmlDeviceGetTemperature": lambda h, kind: 61,
            "nvmlDeviceGetPowerUsage": lambda h: 350_500,
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=97),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda h: 0x4 | 0x40,
            "nvmlDeviceGetViolationStatus": lambda h, policy: SimpleNamespace(violationTime=5),
            "nvmlDeviceGetComputeRunningProcesses": lambda h: [SimpleNamespace(pid=p) for p in (11, 12)],
        }

    @staticmethod
    def by_index(index: int) -> int:
        if index > 1:
            raise FakeNvmlError("no such GPU")
        return index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.answers or name in self.missing:
            raise AttributeError(name)

        def call(*args: object) -> object:
            if name in self.broken:
                raise FakeNvmlError(name)
            return self.answers[name](*args)

        return call


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_a_look_has_all_figures(nvml: FakeNvml) -> None:
    assert GpuMonitor().sample(own_pids={12}) == GpuState(
        name="Fake GPU",
        uuid="GPU-aaaa-0",
        index=0,
        sm_clock_mhz=1400,
        sm_clock_max_mhz=1980,
        memory_clock_mhz=2600,
        temperature_c=61,
        power_w=350.5,
        utilization=97,
        reason_bits=0x44,
        processes=frozenset({11}),
        thermal_ns=5,
    )


def test_reasons_are_words(nvml: FakeNvml) -> None:
    state = GpuMonitor().sample()
    assert state is not None
    assert state.reasons == ("power cap", "thermal slowdown by the hardware")


@pytest.mark.parametrize(
    ("visible", "index"),
    [
        ("1", 1),
        ("1,0", 1),
        (" 0 ,1", 0),
        ("GPU-bbbb", 1),
        ("GPU-aaaa-0", 0),
        ("MIG-cccc", 1),
        ("MIG-GPU-bbbb-1/3/0", 1),
        ("", None),
        ("-1", None),
        ("7", None),
        ("GPU-zzzz", None),
        ("NoDevFiles", None),
    ],
)
def test_the_first_visible_gpu_is_watched(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, index: int | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    state = GpuMonitor().sample()
    assert (state.index if state else None) == index


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"])
def test_no_gpu_is_none(nvml: FakeNvml, function: str) -> None:
    nvml.broken.add(function)
    monitor = GpuMonitor()
    assert monitor.sample() is None
    assert monitor.sample() is None


def test_no_binding_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuMonitor().sample() is None


OPTIONAL = [
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetViolationStatus",
    "nvmlDeviceGetComputeRunningProcesses",
]


@pytest.mark.parametrize("function", OPTIONAL)
@pytest.mark.parametrize("how", ["broken", "missing"])
def test_what_the_driver_does_not_tell_is_left_out(nvml: FakeNvml, function: str, how: str) -> None:
    getattr(nvml, how).add(function)
    state = GpuMonitor().sample()
    assert state is not None
    assert state.name == "Fake GPU"


def test_nothing_told_marks_nothing(nvml: FakeNvml) -> None:
    nvml.broken.update(OPTIONAL)
    monitor = GpuMonitor()
    state = monitor.sample()
    assert state is not None
    assert state.sm_clock_mhz is state.power_w is state.thermal_ns is None
    assert monitor.marks(state, state) == ()


QUIET = GpuState("Fake GPU", "GPU-aaaa-0", 0)


def state(**changes: Any) -> GpuState:
    return dataclasses.replace(QUIET, **changes)


@pytest.mark.parametrize("bits", [0x008, 0x020, 0x040, 0x080, 0x004 | 0x080])
def test_heat_and_failing_power_mark_a_run(bits: int) -> None:
    for before, after in ((QUIET, state(reason_bits=bits)), (state(reason_bits=bits), None)):
        (mark,) = GpuMonitor.marks(before, after)
        assert mark.startswith("throttled: ")
        assert "power cap" not in mark


@pytest.mark.parametrize("bits", [0, 0x001, 0x002, 0x004, 0x010, 0x100, 0x800])
def test_power_cap_idle_and_set_clocks_mark_nothing(bits: int) -> None:
    assert GpuMonitor.marks(state(reason_bits=bits), state(reason_bits=bits)) == ()


@pytest.mark.parametrize(("before", "after", "marked"), [(5, 6, True), (5, 5, False), (None, 6, False)])
def test_throttling_between_the_looks_is_seen(before: int | None, after: int, marked: bool) -> None:
    found = GpuMonitor.marks(state(thermal_ns=before), state(thermal_ns=after))
    assert bool(found) is marked


@pytest.mark.parametrize(
    ("host", "before", "after", "own", "foreign"),
    [
        (True, {7}, {7, 8}, {7}, "pid 8"),
        (True, set(), {9}, set(), "pid 9"),
        (True, {7}, {7}, {7}, ""),
        (False, {7}, {7, 8}, {1}, "pid 7"),
        (False, set(), {9}, set(), ""),
        (False, {9}, None, set(), ""),
        (True, None, None, set(), ""),
    ],
)
def test_foreign_processes_mark_a_run(
    monkeypatch: pytest.MonkeyPatch,
    host: bool,
    before: set[int] | None,
    after: set[int] | None,
    own: set[int],
    foreign: str,
) -> None:
    monkeypatch.setattr(gpu, "_sees_host_pids", lambda: host)
    looks = [None if pids is None else state(processes=frozenset(pids)) for pids in (before, after)]
    found = GpuMonitor.marks(looks[0], looks[1], own)
    assert [mark.rpartition(": ")[2] for mark in found] == ([foreign] if foreign else [])


def test_nothing_known_marks_nothing() -> None:
    assert GpuMonitor.marks(None, None) == ()
