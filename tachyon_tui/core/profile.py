"""What a diagnosis says of one kernel launch: metrics, stall reasons, hot lines, advice, floor."""

from __future__ import annotations

from typing import Literal

from tachyon_tui.core.model import Data


class Metric(Data):
    """One figure of the catalogue. ``value`` is None when it was not collected; that is never zero."""

    key: str
    label: str
    value: float | str | None = None
    unit: str = ""
    """ns, byte, byte/s, hz, %, inst, sector, cycle, warp, block, register/thread or empty."""
    section: str = ""
    source: str = ""
    """ncu's own name of the metric that gave the value."""
    note: str = ""
    """Why the value is missing, or how it was derived."""


class StallShare(Data):
    """Share of warp samples (percent, 0 to 100) that one stall reason holds."""

    reason: str
    percent: float


class HotLine(Data):
    """One source line and the share of warp samples taken on it."""

    file: str
    """Path as the compiler saw it."""
    line: int
    text: str = ""
    samples: int = 0
    percent: float = 0.0
    """Share of all samples of the kernel, 0 to 100."""
    stalls: tuple[StallShare, ...] = ()
    """Largest stall reasons on this line, share of the line's samples."""
    instructions: float | None = None
    """Warp instructions executed on this line."""
    own: bool = True
    """False for a header of the toolkit or of a library that was inlined into the kernel."""


class Advice(Data):
    """What one of NVIDIA's rules says; a hint, never a criterion."""

    rule: str
    title: str
    message: str
    kind: Literal["ok", "optimization", "warning", "error"]
    speedup_percent: float | None = None
    scope: Literal["", "local", "global"] = ""


class FloorTerm(Data):
    """One physical limit in milliseconds and what it was computed from."""

    name: Literal["memory", "compute", "issue", "launch"]
    ms: float
    basis: str


class Floor(Data):
    """The lowest time (ms) that the hardware allows for this version's work, and which limit binds."""

    ms: float
    binding: Literal["memory", "compute", "issue", "launch"]
    terms: tuple[FloorTerm, ...]
    given_bytes: bool = False
    """True when the user gave `[floor] bytes`: only that floor no edit can lower, and only it may stop a session."""


Dim3 = tuple[int, int, int]


class KernelProfile(Data):
    """One profiled kernel launch."""

    name: str
    """Demangled, with template arguments and parameters."""
    mangled: str = ""
    function: str = ""
    """Without namespace, template arguments and parameters."""
    grid: Dim3 = (0, 0, 0)
    block: Dim3 = (0, 0, 0)
    device: str = ""
    compute_capability: str = ""
    gpu_time_ms: float | None = None
    """Under ncu, so not comparable with a timed run."""
    metrics: dict[str, Metric] = {}
    stalls: tuple[StallShare, ...] = ()
    """All stall reasons of the kernel by share of samples, largest first."""
    occupancy_limiters: tuple[str, ...] = ()
    samples: int = 0
    sampled: Literal["yes", "low", "no"] = "no"
    """``low``: fewer than 1000 samples, so shares are rough; ``no``: not collected."""
    lines: Literal["yes", "no line information", "not collected"] = "not collected"
    hot_lines: tuple[HotLine, ...] = ()
    source_files: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    floor: Floor | None = None


class Report(Data):
    """A `.ncu-rep` file as read."""

    path: str
    reader_version: str = ""
    kernels: tuple[KernelProfile, ...] = ()
    warnings: tuple[str, ...] = ()
