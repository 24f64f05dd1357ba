"""The state of the GPU around a run, through NVML: clocks, heat, throttling, other processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tachyon_tui.core.i18n import _

REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal slowdown by the driver",
    0x040: "thermal slowdown by the hardware",
    0x080: "power brake",
    0x100: "display clocks",
}
"""NVML's clock event reasons (nvml.h, nvmlClocksEventReasons) in words."""

VOIDING = frozenset({0x008, 0x020, 0x040, 0x080})
"""The reasons that mark a sample: heat and failing power come and go with the room, not with the code. The power
cap does not: a heavy kernel runs into it every time, so it belongs to the performance of both sides. Idle, and
clocks that a person set, are no disturbance."""

THERMAL_POLICY = 1
"""NVML_PERF_POLICY_THERMAL."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The host's own PID namespace (PROC_PID_INIT_INO in Linux' proc_ns.h)."""


@dataclass(frozen=True)
class GpuState:
    """One look at the GPU; None where the driver does not tell."""

    name: str
    uuid: str
    index: int
    """NVML's number, in the order of PCI addresses."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    utilization: int | None = None
    """Percent of the last sampling period of the driver in which a kernel ran."""
    reason_bits: int = 0
    processes: frozenset[int] = frozenset()
    """Pids of compute processes, own ones left out. In a container they may be numbers of another namespace."""
    thermal_ns: int | None = None
    """Time spent in thermal throttling since the driver was loaded, in ns."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the clock is what it is, in words."""
        return tuple(word for bit, word in REASONS.items() if self.reason_bits & bit)


class GpuMonitor:
    """Looks at the GPU that the programs of this environment use: the first of CUDA_VISIBLE_DEVICES.

    A plain number in that variable is taken as NVML's number; CUDA numbers that way under
    CUDA_DEVICE_ORDER=PCI_BUS_ID and wherever all GPUs are of one kind. No method raises.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._faults: tuple[type[Exception], ...] = ()
        self._device: Any = None
        self._opened = False

    def sample(self, own_pids: Collection[int] = ()) -> GpuState | None:
        """The GPU now, or None where there is no NVIDIA GPU or no NVML."""
        if not self._opened:
            self._opened = True
            self._open()
        if self._device is None:
            return None
        nvml, device, ask = self._nvml, self._device, self._ask
        name = ask(lambda: nvml.nvmlDeviceGetName(device))
        if name is None:
            return None
        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(device))
        rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(device))
        thermal = ask(lambda: nvml.nvmlDeviceGetViolationStatus(device, THERMAL_POLICY))
        pids = ask(lambda: [int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(device)]) or []
        return GpuState(
            name=_text(name),
            uuid=_text(ask(lambda: nvml.nvmlDeviceGetUUID(device)) or ""),
            index=ask(lambda: int(nvml.nvmlDeviceGetIndex(device))) or 0,
            sm_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM))),
            sm_clock_max_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM))),
            memory_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM))),
            temperature_c=ask(lambda: int(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))),
            power_w=power / 1000 if power is not None else None,
            utilization=ask(lambda: int(rates.gpu)),
            # The older of NVML's two names for the same figure, which all drivers know.
            reason_bits=ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))) or 0,
            processes=frozenset(pids) - frozenset(own_pids),
            thermal_ns=ask(lambda: int(thermal.violationTime)),
        )

    @staticmethod
    def marks(
        before: GpuState | None, after: GpuState | None, own_pids: Collection[int] = ()
    ) -> tuple[str, ...]:
        """What disturbed a run, from a look before and one after it; empty when nothing is known to have.

        ``own_pids`` are the processes of the run. Where NVML's pids are those of another namespace (containers), only
        a process seen both before the program started and after it ended is surely not ours and counts.
        """
        states = [state for state in (before, after) if state is not None]
        found = []
        words = [REASONS[bit] for bit in sorted(VOIDING) if any(state.reason_bits & bit for state in states)]
        if not words and _grew(before, after):
            words = [_("thermal")]
        if words:
            found.append(_("throttled: {reasons}").format(reasons=", ".join(words)))
        foreign = _foreign(states, own_pids)
        if foreign:
            found.append(
                _("another process used the GPU: pid {pids}").format(
                    pids=", ".join(map(str, sorted(foreign)))
                )
            )
        return tuple(found)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer, or None where the driver or this GPU does not give one."""
        try:
            return question()
        except self._faults:
            return None

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError:
            return
        self._nvml = pynvml
        # An old binding lacks functions (AttributeError); a sick driver gives no or odd text (TypeError, ValueError).
        self._faults = (pynvml.NVMLError, AttributeError, TypeError, ValueError, OSError)
        if self._ask(lambda: (pynvml.nvmlInit(), True)) is not None:
            self._device = self._ask(self._find)

    def _find(self) -> Any:
        nvml = self._nvml
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        first = visible.split(",")[0].strip() if visible is not None else "0"
        if first.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(first))
        if first.startswith("MIG-GPU-"):  # up to driver 470: MIG-<uuid of the GPU>/<instance>/<instance>
            first = first[4:].split("/")[0]
        if first.startswith("MIG-"):  # clocks and heat are the whole GPU's
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(first))
        if not first.startswith("GPU-"):  # empty or -1: all GPUs are hidden
            return None
        handles = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount()))
        return next((h for h in handles if _text(nvml.nvmlDeviceGetUUID(h)).startswith(first)), None)


def _grew(before: GpuState | None, after: GpuState | None) -> bool:
    """Whether the driver counted thermal throttling during the run, which a look at its end can miss."""
    if before is None or after is None or before.thermal_ns is None or after.thermal_ns is None:
        return False
    return after.thermal_ns > before.thermal_ns


def _foreign(states: Iterable[GpuState], own_pids: Collection[int]) -> frozenset[int]:
    seen = [state.processes for state in states]
    if not seen:
        return frozenset()
    if _sees_host_pids():
        return frozenset().union(*seen) - frozenset(own_pids)
    return seen[0].intersection(*seen[1:]) if len(seen) > 1 else frozenset()


def _sees_host_pids() -> bool:
    """Whether this process counts pids as the driver does."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _text(value: str | bytes) -> str:
    """Old bindings answer with bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
