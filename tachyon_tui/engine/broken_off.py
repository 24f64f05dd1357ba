"""What an earlier session left behind that was killed, or whose machine went down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tachyon_tui.core.session import JournalReader, SessionError, SessionPaths
from tachyon_tui.core.view import fold_all


@dataclass(frozen=True)
class BrokenOff:
    """A session that got as far as a round and ended without saying so."""

    paths: SessionPaths
    new_files: tuple[str, ...]
    """Files that its last candidate created."""


def find_broken_off(earlier: Sequence[SessionPaths]) -> BrokenOff | None:
    """The last of these sessions (oldest first) that played a round, if it was broken off."""
    for paths in reversed(earlier):
        try:
            view = fold_all(JournalReader(paths).events())
        except SessionError:
            continue  # a damaged journal says nothing for certain
        if view.round is not None:
            if view.finished is not None:
                return None
            made = re.findall(r"^diff --git a/(\S+) \S+\nnew file mode", view.round.diff, re.MULTILINE)
            return BrokenOff(paths, tuple(made))
    return None
