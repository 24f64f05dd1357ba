"""Whether tracked files outside the editable set change while a round runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tachyon_tui.workspace.files import digest

HASHED_BYTES = 64 * 1024**2
"""Of larger files (data sets under version control) only size, times and inode are compared."""


class _Seen(NamedTuple):
    stat: tuple[int, ...]
    """With the time of the inode's change, which no program can set back."""
    content: str


class Tamper:
    """Remembers all guarded files at the start of a round and names those that are no longer the same."""

    def __init__(self, root: Path, guarded: Iterable[str], exempt: Iterable[str] = ()) -> None:
        self._root = str(root)
        self._guarded = sorted(set(guarded) - set(exempt))
        self._seen: dict[str, _Seen | None] = {}

    def exempt(self, paths: Iterable[str]) -> None:
        """Files that the baseline's own build and run write: no longer guarded."""
        drop = set(paths)
        self._guarded = [path for path in self._guarded if path not in drop]

    def start(self) -> None:
        """Take the files as they are now for what they should be."""
        self._seen = {path: self._look(path) for path in self._guarded}

    def changed(self) -> tuple[str, ...]:
        """Guarded files that were written, replaced or removed since `start`; a mere touch does not count."""
        return tuple(path for path in self._guarded if path in self._seen and not self._same(path))

    def _same(self, path: str) -> bool:
        before, now = self._seen[path], self._look(path)
        if before is None or now is None:
            return before is now
        return now.content == before.content and (bool(now.content) or now.stat == before.stat)

    def _look(self, path: str) -> _Seen | None:
        # Text, not Path: there may be tens of thousands of tracked files, and each is looked at three times a round.
        file = f"{self._root}/{path}"
        try:
            info = os.lstat(file)
        except OSError:
            return None
        now = (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode)
        before = self._seen.get(path)
        if before and before.stat == now:
            return before
        if stat.S_ISLNK(info.st_mode):
            return _Seen(now, "link " + os.readlink(file))  # noqa: PTH115 -- the text itself
        if info.st_size > HASHED_BYTES or not stat.S_ISREG(info.st_mode) or not os.access(file, os.R_OK):
            return _Seen(now, "")
        return _Seen(now, f"{info.st_mode:o} {digest(Path(file))}")
