"""What a benchmark found, and the bound it is held against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of results."""

    name: str
    measured: float
    bound: float
    """At most this much; the unit is that of ``measured``."""
    unit: str
    more: str = ""
    """Further figures that explain the first."""

    @property
    def kept(self) -> bool:
        """Whether the bound is kept."""
        return self.measured <= self.bound

    def line(self) -> str:
        """The figures on one line."""
        word = "ok  " if self.kept else "OVER"
        text = f"{word}  {self.name}: {self.measured:.3g} {self.unit} (at most {self.bound:g} {self.unit})"
        return f"{text}; {self.more}" if self.more else text
