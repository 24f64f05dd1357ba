"""What every refusal of this room has in common: what is wrong, and what to do next."""

from __future__ import annotations


class Problem(Exception):
    """Something the user can put right; ``fix`` is the next thing to type or to change, or empty."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class ForeignChange(Problem):
    """Files of ours are not on disk as we last saw or wrote them; nothing was overwritten. ``paths`` names them."""

    def __init__(self, message: str, fix: str, paths: tuple[str, ...]) -> None:
        super().__init__(message, fix)
        self.paths = paths
