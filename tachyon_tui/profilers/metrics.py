"""The catalogue of metrics as data: ncu's names with fallbacks, label, unit, and the section that has them.

Names differ between GPU generations and versions of ncu, so an entry lists candidates in order of preference
and may be derived from others. A metric that was not collected, has no value or is not a number is absent;
it is never zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tachyon_tui.core.i18n import _, mark, translate
from tachyon_tui.core.profile import Metric

SECTOR_BYTES = 32
"""Bytes of one memory sector on every GPU that ncu supports (Profiling Guide, "Memory Tables")."""


class RawMetric(Protocol):
    """What is used of `ncu_report.IMetric`."""

    def value(self, instance: int | None = None, /) -> Any: ...
    def has_value(self) -> bool: ...
    def unit(self) -> str: ...
    def num_instances(self) -> int: ...
    def has_correlation_ids(self) -> bool: ...
    def correlation_ids(self) -> RawMetric: ...


class SourceInfo(Protocol):
    """What is used of `ncu_report.ISourceInfo`."""

    def file_name(self) -> str: ...
    def line(self) -> int: ...


class Action(Protocol):
    """What is used of `ncu_report.IAction`: one profiled launch."""

    def name(self, base: int, /) -> str | None: ...
    def metric_by_name(self, name: str, /) -> RawMetric | None: ...
    def metric_names(self) -> Any: ...
    def source_info(self, pc: int, /) -> SourceInfo | None: ...
    def source_files(self) -> Any: ...
    def rule_results_as_dicts(self) -> Any: ...


Read = Callable[[str], float | None]
"""Value of an ncu metric by ncu's own name, None when absent."""

Derived = tuple[float, str]
"""A derived value and how it was derived."""


def read_value(action: Action, name: str) -> float | str | None:
    """The value of an ncu metric in ncu's base units; None when it is absent, empty, or not a finite number."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_value():
        return None
    value = metric.value()
    if isinstance(value, str):
        return value.strip() or None
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def read_number(action: Action, name: str) -> float | None:
    """As `read_value`, for numbers: a text counts as absent."""
    value = read_value(action, name)
    return value if isinstance(value, float) else None


def _product(*names: str, scale: float = 1.0) -> Callable[[Read], Derived | None]:
    def derive(read: Read) -> Derived | None:
        result = scale
        for name in names:
            value = read(name)
            if value is None:
                return None
            result *= value
        how = " x ".join(names)
        return result, how if scale == 1.0 else f"{how} x {scale:g}"

    return derive


def _ratio(top: str, bottom: str, scale: float = 1.0) -> Callable[[Read], Derived | None]:
    def derive(read: Read) -> Derived | None:
        upper, lower = read(top), read(bottom)
        if upper is None or lower is None or lower <= 0:
            return None
        return upper / lower * scale, f"{top} / {bottom}"

    return derive


def _first(*ways: Callable[[Read], Derived | None]) -> Callable[[Read], Derived | None]:
    def derive(read: Read) -> Derived | None:
        for way in ways:
            found = way(read)
            if found is not None:
                return found
        return None

    return derive


def _first_of(read: Read, *names: str) -> float | None:
    for name in names:
        value = read(name)
        if value is not None:
            return value
    return None


TIME = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max")
SM_CLOCK = ("gpc__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
DRAM_CLOCK = "dram__cycles_elapsed.avg.per_second"
DRAM_PERCENT = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_READ = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
DRAM_WRITE = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")


def _dram_peak(read: Read) -> Derived | None:
    """Peak DRAM bandwidth in byte/s: bytes per cycle times the DRAM clock, else bus width / 8 x 2 x memory clock.

    The second form is the double data rate formula; it is within 1 % of the first on every GPU of the
    reference.
    """
    per_cycle, clock = read("dram__bytes.sum.peak_sustained"), read(DRAM_CLOCK)
    if per_cycle is not None and clock is not None:
        return per_cycle * clock, f"dram__bytes.sum.peak_sustained x {DRAM_CLOCK}"
    width = _first_of(read, "device__attribute_fb_bus_width", "device__attribute_global_memory_bus_width")
    khz = _first_of(read, "device__attribute_max_mem_frequency_khz", "device__attribute_memory_clock_rate")
    if width and khz:
        return width / 8 * 2 * khz * 1000, "bus width / 8 x 2 x memory clock"
    return None


def _dram_bytes(read: Read) -> Derived | None:
    """Bytes moved to and from DRAM, from the first source present.

    Read plus write; bandwidth x time; share of the peak x peak x time; L2 misses to system memory x 32 where
    the GPU has no DRAM of its own (GB10, Thor).
    """
    got, put = _first_of(read, *DRAM_READ), _first_of(read, *DRAM_WRITE)
    if got is not None and put is not None:
        return got + put, "DRAM bytes read + written"
    seconds = _first_of(read, *TIME)
    rate = read("dram__bytes.sum.per_second")
    if seconds is not None:
        seconds /= 1e9
        if rate is not None:
            return rate * seconds, "dram__bytes.sum.per_second x GPU time"
        percent, peak = read(DRAM_PERCENT), _dram_peak(read)
        if percent is not None and peak is not None:
            return percent / 100 * peak[0] * seconds, "DRAM % x peak bandwidth x GPU time"
    misses = read("lts__t_sectors_aperture_sysmem_lookup_miss.sum")
    return None if misses is None else (misses * SECTOR_BYTES, "L2 misses to system memory x 32 bytes")


def _bandwidth(read: Read) -> Derived | None:
    moved, ns = _dram_bytes(read), _first_of(read, *TIME)
    return (moved[0] / ns * 1e9, "DRAM bytes / GPU time") if moved and ns else None


def _time(read: Read) -> Derived | None:
    cycles, clock = read("gpc__cycles_elapsed.max"), _first_of(read, *SM_CLOCK)
    return (cycles / clock * 1e9, "gpc__cycles_elapsed.max / SM clock") if cycles and clock else None


def _flops_per_second(kind: str) -> Callable[[Read], Derived | None]:
    """FLOP/s of one precision (``f`` or ``d``): (add + mul + 2 fma) per elapsed cycle x SM clock.

    The formula of the roofline section of ncu; only instructions that were not predicated off count.
    """

    def derive(read: Read) -> Derived | None:
        counts = [
            read(f"smsp__sass_thread_inst_executed_op_{kind}{op}_pred_on.sum.per_cycle_elapsed")
            for op in ("add", "mul", "fma")
        ]
        clock = _first_of(read, "smsp__cycles_elapsed.avg.per_second", *SM_CLOCK)
        add, mul, fma = counts
        if add is None or mul is None or fma is None or clock is None:
            return None
        return (add + mul + 2 * fma) * clock, f"({kind}add + {kind}mul + 2 {kind}fma) per cycle x SM clock"

    return derive


def _flops(kind: str) -> Callable[[Read], Derived | None]:
    def derive(read: Read) -> Derived | None:
        rate, ns = _flops_per_second(kind)(read), _first_of(read, *TIME)
        return (rate[0] * ns / 1e9, "FLOP/s x GPU time") if rate and ns is not None else None

    return derive


FP32_LANES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""FP32 lanes of one SM by compute capability; 128 on all later ones (CUDA Programming Guide, throughput table)."""


def _flop_peak(kind: str) -> Callable[[Read], Derived | None]:
    """Peak FLOP/s of one precision: 2 x fused multiply-adds per cycle x SM clock of the measured run.

    Without the roofline section: SMs x lanes x 2 x clock (x the double to single ratio).
    """

    def derive(read: Read) -> Derived | None:
        clock = _first_of(read, *SM_CLOCK)
        per_cycle = read(f"sm__sass_thread_inst_executed_op_{kind}fma_pred_on.sum.peak_sustained")
        if clock is None:
            return None
        if per_cycle is not None:
            return 2 * per_cycle * clock, f"2 x {kind}fma per cycle at the peak x SM clock"
        sms = _first_of(read, "launch__sm_count", "device__attribute_multiprocessor_count")
        major = read("device__attribute_compute_capability_major")
        minor = read("device__attribute_compute_capability_minor")
        if sms is None or major is None or minor is None:
            return None
        lanes = float(FP32_LANES.get((int(major), int(minor)), 128))
        if kind == "d":
            ratio = read("device__attribute_single_to_double_precision_perf_ratio")
            if not ratio:
                return None
            lanes /= ratio
        return sms * lanes * 2 * clock, "SMs x lanes x 2 x SM clock"

    return derive


@dataclass(frozen=True)
class Entry:
    """One figure of the catalogue."""

    key: str
    label: str
    unit: str
    section: str
    """Identifier of ncu's section that supplies it; empty when every run has it."""
    names: tuple[str, ...] = ()
    """ncu's names, the preferred one first."""
    derive: Callable[[Read], Derived | None] | None = None
    """Used when none of the names has a value."""
    missing: str = ""
    """Why it may be missing although its section was collected."""


SETS = {
    "LaunchStats": "basic",
    "Occupancy": "basic",
    "SpeedOfLight": "basic",
    "ComputeWorkloadAnalysis": "detailed",
    "MemoryWorkloadAnalysis": "detailed",
    "SourceCounters": "detailed",
    "SpeedOfLight_RooflineChart": "detailed",
}
"""The smallest `--ncu-set` with a section; sections not named here are only in ``full``."""

_SOL, _LAUNCH, _OCC = "SpeedOfLight", "LaunchStats", "Occupancy"
_MWA, _TABLES, _CWA = "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables", "ComputeWorkloadAnalysis"
_SCHED, _WARP, _SRC, _ROOF = (
    "SchedulerStats",
    "WarpStateStats",
    "SourceCounters",
    "SpeedOfLight_RooflineChart",
)
_ELAPSED, _ACTIVE = ".avg.pct_of_peak_sustained_elapsed", ".avg.pct_of_peak_sustained_active"
_SHARED_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
_NO_DRAM = mark("this GPU has no DRAM counters")
_OLD = mark("needs a newer GPU or a newer ncu")

# fmt: off
CATALOGUE: tuple[Entry, ...] = (
    # Time and clocks
    Entry("gpu_time", mark("GPU time"), "ns", _SOL, TIME, _time),
    Entry("cycles", mark("Cycles elapsed"), "cycle", _SOL, ("gpc__cycles_elapsed.max", "sm__cycles_elapsed.max")),
    Entry("sm_active_cycles", mark("SM cycles active"), "cycle", _SOL, ("sm__cycles_active.avg",)),
    Entry("sm_clock", mark("SM clock"), "hz", _SOL, SM_CLOCK, _ratio("gpc__cycles_elapsed.max", TIME[0], 1e9)),
    Entry("dram_clock", mark("DRAM clock"), "hz", _SOL, (DRAM_CLOCK,), missing=_NO_DRAM),
    Entry("passes", mark("Passes"), "pass", "", ("profiler__replayer_passes",)),
    Entry("backup_bytes", mark("Memory saved and restored"), "byte", "", (
        "profiler__replayer_bytes_mem_backed_up.sum",), missing=mark("a single pass saves nothing")),
    # Speed of light
    Entry("compute_percent", mark("Compute throughput"), "%", _SOL, ("sm__throughput" + _ELAPSED,)),
    Entry("memory_percent", mark("Memory throughput"), "%", _SOL, ("gpu__compute_memory_throughput" + _ELAPSED,)),
    Entry("dram_percent", mark("DRAM throughput"), "%", _SOL, (DRAM_PERCENT, "dram__throughput" + _ELAPSED),
          missing=_NO_DRAM),
    Entry("l1_percent", mark("L1 throughput"), "%", _SOL, ("l1tex__throughput" + _ACTIVE, "l1tex__throughput" + _ELAPSED)),
    Entry("l2_percent", mark("L2 throughput"), "%", _SOL, ("lts__throughput" + _ELAPSED,)),
    # Memory
    Entry("l1_hit_percent", mark("L1 hit rate"), "%", _MWA, ("l1tex__t_sector_hit_rate.pct",)),
    Entry("l2_hit_percent", mark("L2 hit rate"), "%", _MWA, ("lts__t_sector_hit_rate.pct",)),
    Entry("dram_read_bytes", mark("DRAM bytes read"), "byte", _TABLES, DRAM_READ, _first(
        _product("dram__sectors_read.sum", scale=SECTOR_BYTES),
        _product("dram__sectors_op_read.sum", scale=SECTOR_BYTES)), _NO_DRAM),
    Entry("dram_write_bytes", mark("DRAM bytes written"), "byte", _TABLES, DRAM_WRITE, _first(
        _product("dram__sectors_write.sum", scale=SECTOR_BYTES),
        _product("dram__sectors_op_write.sum", scale=SECTOR_BYTES)), _NO_DRAM),
    Entry("dram_bytes", mark("DRAM bytes"), "byte", _TABLES, ("dram__bytes.sum",), _dram_bytes, _NO_DRAM),
    Entry("dram_bandwidth", mark("DRAM bandwidth"), "byte/s", _MWA, ("dram__bytes.sum.per_second",),
          _bandwidth, _NO_DRAM),
    Entry("dram_peak", mark("DRAM peak bandwidth"), "byte/s", "", (), _dram_peak, _NO_DRAM),
    Entry("l2_bytes", mark("L2 bytes"), "byte", _TABLES, ("lts__t_bytes.sum",),
          _product("lts__t_sectors.sum", scale=SECTOR_BYTES)),
    # Launch
    Entry("grid_size", mark("Blocks"), "block", _LAUNCH, ("launch__grid_size",)),
    Entry("block_size", mark("Threads per block"), "thread", _LAUNCH, ("launch__block_size",)),
    Entry("threads", mark("Threads"), "thread", _LAUNCH, ("launch__thread_count",),
          _product("launch__grid_size", "launch__block_size")),
    Entry("registers", mark("Registers per thread"), "register/thread", _LAUNCH, ("launch__registers_per_thread",)),
    Entry("shared_bytes", mark("Shared memory per block"), "byte/block", _LAUNCH, ("launch__shared_mem_per_block",)),
    Entry("shared_static", mark("Static shared memory"), "byte/block", _LAUNCH, ("launch__shared_mem_per_block_static",)),
    Entry("shared_dynamic", mark("Dynamic shared memory"), "byte/block", _LAUNCH, (
        "launch__shared_mem_per_block_dynamic",)),
    Entry("waves", mark("Waves per SM"), "", _LAUNCH, ("launch__waves_per_multiprocessor",)),
    Entry("sm_count", mark("SMs"), "SM", _LAUNCH, ("launch__sm_count", "device__attribute_multiprocessor_count")),
    Entry("schedulers", mark("Schedulers per SM"), "", "", ("device__attribute_num_schedulers_per_multiprocessor",)),
    Entry("cluster_size", mark("Cluster size"), "block", _LAUNCH, ("launch__cluster_size",), missing=_OLD),
    Entry("barriers", mark("Barriers per block"), "", _LAUNCH, ("launch__barrier_count",), missing=_OLD),
    Entry("stack_bytes", mark("Stack per thread"), "byte", _LAUNCH, ("launch__stack_size",), missing=_OLD),
    # Occupancy
    Entry("occupancy_percent", mark("Achieved occupancy"), "%", _OCC, ("sm__warps_active" + _ACTIVE,)),
    Entry("theoretical_percent", mark("Theoretical occupancy"), "%", _OCC, ("sm__maximum_warps_per_active_cycle_pct",)),
    Entry("limit_registers", mark("Block limit: registers"), "block", _OCC, ("launch__occupancy_limit_registers",)),
    Entry("limit_shared", mark("Block limit: shared memory"), "block", _OCC, ("launch__occupancy_limit_shared_mem",)),
    Entry("limit_warps", mark("Block limit: warps"), "block", _OCC, ("launch__occupancy_limit_warps",)),
    Entry("limit_blocks", mark("Block limit: blocks"), "block", _OCC, ("launch__occupancy_limit_blocks",)),
    Entry("limit_barriers", mark("Block limit: barriers"), "block", _OCC, ("launch__occupancy_limit_barriers",),
          missing=_OLD),
    # Schedulers, warps, pipes
    Entry("issue_percent", mark("Issue slots busy"), "%", _SCHED, ("smsp__issue_active" + _ACTIVE,),
          _product("smsp__issue_active.avg.per_cycle_active", scale=100)),
    Entry("eligible_warps", mark("Eligible warps per scheduler"), "warp", _SCHED, (
        "smsp__warps_eligible.avg.per_cycle_active",)),
    Entry("active_warps", mark("Active warps per scheduler"), "warp", _SCHED, ("smsp__warps_active.avg.per_cycle_active",)),
    Entry("cycles_per_issue", mark("Cycles between issues of a warp"), "cycle", _WARP, (
        "smsp__average_warp_latency_per_inst_issued.ratio",)),
    Entry("lanes_active", mark("Active threads per warp"), "thread", _WARP, (
        "smsp__thread_inst_executed_per_inst_executed.ratio",)),
    Entry("lanes_predicated", mark("Threads per warp not predicated off"), "thread", _WARP, (
        "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",)),
    Entry("ipc", mark("Instructions per cycle"), "inst/cycle", _CWA, ("sm__inst_executed.avg.per_cycle_active",)),
    Entry("instructions", mark("Warp instructions"), "inst", "InstructionStats", (
        "smsp__inst_executed.sum", "inst_executed", "sass__inst_executed_per_opcode")),
    Entry("fma_percent", mark("FMA pipe"), "%", _CWA, ("sm__pipe_fma_cycles_active" + _ACTIVE,
                                                "sm__inst_executed_pipe_fma" + _ACTIVE)),
    Entry("alu_percent", mark("ALU pipe"), "%", _CWA, ("sm__pipe_alu_cycles_active" + _ACTIVE,
                                                "sm__inst_executed_pipe_alu" + _ACTIVE)),
    Entry("lsu_percent", mark("LSU pipe"), "%", _CWA, ("sm__inst_executed_pipe_lsu" + _ACTIVE,)),
    Entry("fp64_percent", mark("FP64 pipe"), "%", _CWA, ("sm__pipe_fp64_cycles_active" + _ACTIVE,
                                                  "sm__inst_executed_pipe_fp64" + _ACTIVE)),
    Entry("tensor_percent", mark("Tensor pipe"), "%", _CWA, (
        "sm__pipe_tensor_cycles_active" + _ACTIVE, "sm__pipe_tc_cycles_active" + _ACTIVE,
        "sm__inst_executed_pipe_tensor_op_hmma" + _ACTIVE)),
    Entry("tensor_elapsed_percent", mark("Tensor pipe over the whole time"), "%", _SOL, (
        "sm__pipe_tensor_cycles_active" + _ELAPSED, "sm__pipe_tc_cycles_active" + _ELAPSED,
        "sm__inst_executed_pipe_tensor_op_hmma" + _ELAPSED)),
    # Quality of memory accesses
    Entry("load_sectors", mark("Sectors per global load"), "sector", _TABLES, (
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",), _ratio(
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
        mark("the kernel made no global loads")),
    Entry("store_sectors", mark("Sectors per global store"), "sector", _TABLES, (
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",), _ratio(
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
        mark("the kernel made no global stores")),
    Entry("load_bytes_used", mark("Bytes used of a loaded 32-byte sector"), "byte/sector", _TABLES, (
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",), _product(
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct", scale=SECTOR_BYTES / 100)),
    Entry("store_bytes_used", mark("Bytes used of a stored 32-byte sector"), "byte/sector", _TABLES, (
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",), _product(
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct", scale=SECTOR_BYTES / 100)),
    Entry("uncoalesced_percent", mark("Excess global sectors"), "%", _SRC, (), _ratio(
        "derived__memory_l2_theoretical_sectors_global_excessive", "memory_l2_theoretical_sectors_global", 100),
        mark("the kernel made no global accesses")),
    Entry("bank_conflicts", mark("Shared memory bank conflicts"), "", _TABLES, (_SHARED_CONFLICTS + ".sum",)),
    Entry("bank_conflict_percent", mark("Bank conflicts of shared wavefronts"), "%", _TABLES, (), _ratio(
        _SHARED_CONFLICTS + ".sum", _SHARED_WAVEFRONTS + ".sum", 100), mark("the kernel used no shared memory")),
    Entry("shared_excess_percent", mark("Excess shared wavefronts"), "%", _SRC, (), _ratio(
        "derived__memory_l1_wavefronts_shared_excessive", "memory_l1_wavefronts_shared", 100),
        mark("the kernel used no shared memory")),
    Entry("local_loads", mark("Local memory loads"), "inst", "InstructionStats", (
        "sass__inst_executed_local_loads", "smsp__inst_executed_op_local_ld.sum",
        "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum")),
    Entry("local_stores", mark("Local memory stores"), "inst", "InstructionStats", (
        "sass__inst_executed_local_stores", "smsp__inst_executed_op_local_st.sum",
        "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum")),
    Entry("spills", mark("Register spill instructions"), "inst", _SRC, ("sass__inst_executed_register_spilling",),
          missing=_OLD),
    Entry("divergent_branches", mark("Divergent branches"), "", _SRC, ("smsp__branch_targets_threads_divergent",)),
    Entry("uniform_percent", mark("Uniform branch targets"), "%", _SRC, (
        "smsp__sass_average_branch_targets_threads_uniform.pct",)),
    # Arithmetic
    Entry("fp32_rate", mark("FP32 rate"), "flop/s", _ROOF, (), _flops_per_second("f")),
    Entry("fp64_rate", mark("FP64 rate"), "flop/s", _ROOF, (), _flops_per_second("d")),
    Entry("fp32_flops", mark("FP32 operations"), "flop", _ROOF, (), _flops("f")),
    Entry("fp64_flops", mark("FP64 operations"), "flop", _ROOF, (), _flops("d")),
    Entry("fp32_peak", mark("FP32 peak at the measured clock"), "flop/s", _ROOF, (), _flop_peak("f")),
    Entry("fp64_peak", mark("FP64 peak at the measured clock"), "flop/s", _ROOF, (), _flop_peak("d")),
)
# fmt: on


def _why_missing(entry: Entry, valueless: bool, zero: bool) -> str:
    if valueless:
        return _("collected, but ncu gave no value")
    if zero and entry.missing:
        return translate(entry.missing)
    if not entry.section:
        return translate(entry.missing) if entry.missing else _("not collected in this run")
    supply = SETS.get(entry.section, "full")
    text = _("not collected: section {section}, in --ncu-set {set}").format(section=entry.section, set=supply)
    return f"{text}; {_('or')} {translate(entry.missing)}" if entry.missing else text


def collect(action: Action) -> dict[str, Metric]:
    """Every figure of the catalogue for one launch, by key; those that are absent have the reason in ``note``."""
    return {entry.key: _metric(entry, action) for entry in CATALOGUE}


def _metric(entry: Entry, action: Action) -> Metric:
    label = translate(entry.label)
    for name in entry.names:
        value = read_value(action, name)
        if value is not None:
            return Metric(
                key=entry.key, label=label, value=value, unit=entry.unit, section=entry.section, source=name
            )
    zeros: list[str] = []

    def read(name: str) -> float | None:
        value = read_number(action, name)
        if value == 0:
            zeros.append(name)
        return value

    derived = entry.derive(read) if entry.derive is not None else None
    if derived is not None and math.isfinite(derived[0]):
        value, how = derived
        return Metric(
            key=entry.key, label=label, value=value, unit=entry.unit, section=entry.section, note=how
        )
    valueless = any(action.metric_by_name(name) is not None for name in entry.names)
    note = _why_missing(entry, valueless, bool(zeros))
    return Metric(key=entry.key, label=label, unit=entry.unit, section=entry.section, note=note)
