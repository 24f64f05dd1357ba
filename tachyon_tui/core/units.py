"""Quantities as text, in one place: times in ms, shares in percent, sizes in bytes, counts."""

from __future__ import annotations

import math

NOT_AVAILABLE = "n/a"


def ms_text(ms: float | None) -> str:
    """A GPU time given in milliseconds: ``80.68ms``, ``0.1235ms``, ``1.24s``."""
    if ms is None or not math.isfinite(ms):
        return NOT_AVAILABLE
    if ms >= 100_000:
        return f"{ms / 1000:.0f}s"
    if ms >= 1000:
        return f"{ms / 1000:.2f}s"
    if ms >= 1:
        return f"{ms:.2f}ms"
    return f"{ms:.4f}ms"


def percent_text(percent: float | None, *, sign: bool = False, digits: int = 1) -> str:
    """A share or change in percent (0 to 100): ``87.0%``; with ``sign`` a zero is written ``+0.0%``."""
    if percent is None or not math.isfinite(percent):
        return NOT_AVAILABLE
    rounded = round(percent, digits)
    if rounded == 0:
        rounded = math.copysign(0.0, percent) if sign else 0.0
    return f"{rounded:{'+' if sign else ''}.{digits}f}%"


def bytes_text(count: float | None) -> str:
    """A size in bytes, in binary units: ``512 B``, ``1.5 KiB``, ``516.0 MiB``."""
    if count is None or not math.isfinite(count):
        return NOT_AVAILABLE
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def rate_text(bytes_per_second: float | None) -> str:
    """A bandwidth in bytes per second, in decimal units as data sheets give it: ``862 GB/s``, ``4.81 TB/s``."""
    if bytes_per_second is None or not math.isfinite(bytes_per_second):
        return NOT_AVAILABLE
    if bytes_per_second >= 1e12:
        return f"{bytes_per_second / 1e12:.2f} TB/s"
    return f"{bytes_per_second / 1e9:.{0 if bytes_per_second >= 1e10 else 2}f} GB/s"


def count_text(count: float | None) -> str:
    """A count with thousands grouped: ``3 262 152``."""
    if count is None or not math.isfinite(count):
        return NOT_AVAILABLE
    return f"{count:,.0f}".replace(",", " ")


def duration_text(seconds: float | None) -> str:
    """A span of time in seconds: ``0.4s``, ``12s``, ``3m05s``, ``1h02m``."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def cost_text(usd: float | None) -> str:
    """Money in US dollars: ``$0.0312``, ``$12.40``."""
    if usd is None or not math.isfinite(usd):
        return NOT_AVAILABLE
    return f"${usd:.4f}" if usd < 1 else f"${usd:.2f}"


def gain_percent(before_ms: float, after_ms: float) -> float:
    """Time saved in percent of ``before_ms``; negative when it became slower."""
    return (1 - after_ms / before_ms) * 100


def change_percent(before_ms: float, after_ms: float) -> float:
    """Change of a time in percent of ``before_ms``; negative when it became faster."""
    return (after_ms / before_ms - 1) * 100
