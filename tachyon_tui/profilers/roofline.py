"""The physical floor: the lowest time the hardware allows for a kernel's work, at the measured run's clocks.

Terms, each a lower bound in ms (S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, with
one more ceiling for instruction issue):

memory   bytes / peak DRAM bandwidth
compute  operations / peak of the pipe that does them; busy share of the tensor pipe x measured time
issue    warp instructions / (SMs x schedulers x SM clock): one instruction per scheduler and cycle
launch   what an empty kernel takes
"""

from __future__ import annotations

from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import Floor, FloorTerm, KernelProfile

LAUNCH_MS = 0.002
"""Shortest duration in ms that an empty kernel shows on current GPUs."""
SCHEDULERS = 4
"""Warp schedulers of one SM since Volta, where the report does not say."""


def floor(
    profile: KernelProfile, given_bytes: float | None = None, given_flops: float | None = None
) -> Floor | None:
    """The floor of one profiled launch; None when the report has nothing to compute one from.

    ``given_bytes`` and ``given_flops`` are the user's count of what any version must move and compute; they
    replace the measured figures. With ``given_bytes`` only the given terms bind, because an edit can lower
    every measured one (fewer instructions, less traffic); the measured terms are still listed. Without it
    the floor is that of this version's work.
    """
    terms = [_memory(profile, given_bytes), _compute(profile, given_flops), _issue(profile)]
    if not any(terms):
        return None
    launch = FloorTerm(name="launch", ms=LAUNCH_MS, basis=_("the shortest kernel there is"))
    present = [term for term in terms if term is not None] + [launch]
    given = given_bytes is not None and terms[0] is not None
    binding = ["memory", "launch"] + (["compute"] if given_flops is not None else [])
    top = max((term for term in present if not given or term.name in binding), key=lambda term: term.ms)
    return Floor(ms=top.ms, binding=top.name, terms=tuple(present), given_bytes=given)


def _figure(profile: KernelProfile, key: str) -> float | None:
    metric = profile.metrics.get(key)
    return metric.value if metric is not None and isinstance(metric.value, float) else None


def _memory(profile: KernelProfile, given: float | None) -> FloorTerm | None:
    """Bytes / peak DRAM bandwidth; compulsory bytes when given, else what this version moved."""
    peak = _figure(profile, "dram_peak")
    moved = given if given is not None else _figure(profile, "dram_bytes")
    if not peak or moved is None:
        return None
    which = _("given bytes") if given is not None else _("DRAM bytes of this version")
    return FloorTerm(
        name="memory", ms=moved / peak * 1e3, basis=f"{moved:.0f} {which} / {peak / 1e12:.3f} TB/s"
    )


def _compute(profile: KernelProfile, given: float | None) -> FloorTerm | None:
    """Operations / peak of their pipe; the busiest of FP32, FP64 and tensor binds.

    Given operations are taken at the peak of the precision that this version computes most in. The tensor
    peak depends on the data type, which the report does not name, so the tensor term is the share of time
    its pipe was busy.
    """
    terms = []
    counts = {kind: _figure(profile, f"{kind}_flops") for kind in ("fp32", "fp64")}
    if given is not None:
        kind = "fp64" if (counts["fp64"] or 0) > (counts["fp32"] or 0) else "fp32"
        counts = {kind: given}
    for kind, count in counts.items():
        peak = _figure(profile, f"{kind}_peak")
        if count and peak:
            basis = f"{count:.4g} {kind.upper()} / {peak / 1e12:.2f} TFLOP/s"
            terms.append(FloorTerm(name="compute", ms=count / peak * 1e3, basis=basis))
    busy, measured = _figure(profile, "tensor_elapsed_percent"), profile.gpu_time_ms
    if given is None and busy and measured:
        basis = _("tensor pipe busy {percent:.1f}% of the measured time").format(percent=busy)
        terms.append(FloorTerm(name="compute", ms=busy / 100 * measured, basis=basis))
    return max(terms, key=lambda term: term.ms, default=None)


def _issue(profile: KernelProfile) -> FloorTerm | None:
    """Warp instructions / (SMs x schedulers x SM clock): a scheduler issues at most one instruction per cycle."""
    count, clock, sms = (_figure(profile, key) for key in ("instructions", "sm_clock", "sm_count"))
    if not count or not clock or not sms:
        return None
    schedulers = _figure(profile, "schedulers") or SCHEDULERS
    basis = _(
        "{count:.4g} warp instructions of this version / ({sms:.0f} SMs x {schedulers:.0f} x {ghz:.2f} GHz)"
    )
    return FloorTerm(
        name="issue",
        ms=count / (sms * schedulers * clock) * 1e3,
        basis=basis.format(count=count, sms=sms, schedulers=schedulers, ghz=clock / 1e9),
    )
