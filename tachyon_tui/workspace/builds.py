"""Builds that are kept beside each other, so that incumbent and candidate can be run in turn."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from tachyon_tui.core.i18n import _
from tachyon_tui.core.units import bytes_text
from tachyon_tui.workspace.files import (
    Scan,
    Signature,
    copy_file,
    digest,
    is_binary,
    removed,
    scan_files,
    signature,
    written,
)

MAX_BYTES = 2 * 1024**3
SPARE_BYTES = 256 * 1024**2
"""What is left free on the disk of the session folder."""
RACY_NS = 100_000_000
"""A file written so short a time ago could be written again within one tick of the clock that stamps files."""


class CannotKeep(Exception):
    """This build cannot be kept, or not be put back; the message says why. Only a clear gain may then be accepted."""


@dataclass(frozen=True)
class _Kept:
    """One file of a kept build."""

    mode: int
    mtime_ns: int
    digest: str
    """Of the content; for a symbolic link its target."""


@dataclass(frozen=True)
class KeptBuild:
    """The artefacts of one build, by path relative to the root."""

    name: str
    files: dict[str, _Kept] = field(repr=False)
    bytes: int


@dataclass(frozen=True)
class Learned:
    """What one build taught about the artefacts."""

    new: frozenset[str]
    """Artefacts that were not known before."""
    lost: frozenset[str]
    """Those of them that existed before this build: the version that kept builds had is overwritten, so that these
    cannot be put back whole."""


class BuildStore:
    """Learns which files a build writes, keeps their versions in the session folder, and puts a version back.

    Contents are stored once, by their digest. Artefacts are files below the root; a build that writes elsewhere
    cannot be kept.
    """

    def __init__(self, root: Path, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.root = root.resolve()
        self.artefacts: set[str] = set()
        """Whether builds write binaries, as far as is known."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._contents: dict[str, tuple[Signature, str]] = {}
        """What is known to lie on disk: signature and digest by path."""
        self._sound: dict[str, tuple[int, ...]] = {}
        """Copies whose content was seen to be right, with the traces that any change of them would leave."""
        self._left: dict[str, Signature] = {}
        """The artefacts as the last build or swap of ours left them."""
        self._incomplete: set[str] = set()
        self._kept: dict[str, KeptBuild] = {}

    def scan(self) -> Scan:
        """Look at all files below the root; to be done right before and right after a build."""
        return scan_files(self.root)

    def learn(
        self, before: Scan, after: Scan, sources: Collection[str] = (), *, first: bool = True
    ) -> Learned:
        """Add what a build wrote or removed to the artefacts.

        A ``first`` build, made while nobody works, teaches all it wrote. Of later ones only what is plainly a product
        counts (an object file, a library, a program, or what lies in a folder that only builds write to): a person
        may have saved a file of their own meanwhile.

        ``sources`` are files that never count, because edits write them and builds must not: the tracked files
        (less those that the baseline's own build writes). An incremental build that had nothing to do teaches
        nothing, so the first build of a session should follow a touch of the editable files.
        """
        made = (written(before, after) | removed(before, after)) - set(sources)
        new = made - self.artefacts
        if not first:
            new = frozenset(path for path in new if path in after and self._is_product(path, sources))
            made = new | (made & self.artefacts)
        lost = frozenset(path for path in new if path in before)
        self.artefacts |= made
        self.refresh()
        if lost:
            self._incomplete |= self._kept.keys()
        return Learned(frozenset(new), lost)

    def refresh(self) -> None:
        """Take the artefacts on disk now for what we left there; to be called after every build of ours."""
        self._left = {path: now for path in self.artefacts if (now := signature(self.root / path))}

    def _is_product(self, path: str, sources: Collection[str]) -> bool:
        top = path.partition("/")[0] + "/"
        if (
            top != path + "/"
            and any(known.startswith(top) for known in self.artefacts)
            and not any(source.startswith(top) for source in sources)
        ):
            return True
        return is_binary(self.root / path)

    def _ours(self, path: str) -> None:
        """Raise `CannotKeep` when somebody else wrote the file since we did: it may be their work."""
        now = signature(self.root / path)
        if now is not None and now != self._left.get(path):
            raise CannotKeep(
                _("{file} was written by something other than the build; nothing was overwritten").format(
                    file=path
                )
            )

    def rename(self, kept: KeptBuild, name: str) -> KeptBuild:
        """The kept build under another name; a build of that name is forgotten."""
        old = self._kept.get(name)
        renamed = replace(kept, name=name)
        del self._kept[kept.name]
        self._kept[name] = renamed
        self._incomplete.discard(name)
        if kept.name in self._incomplete:
            self._incomplete.remove(kept.name)
            self._incomplete.add(name)
        if old is not None:
            self._delete_copies(old)
        return renamed

    def keep(self, name: str) -> KeptBuild:
        """Copy the artefacts as they are now. Raises `CannotKeep`."""
        found = {path: now for path in self.artefacts if (now := signature(self.root / path)) is not None}
        if not found:
            raise CannotKeep(_("the build wrote no file below {root}").format(root=self.root))
        size = sum(now.size for now in found.values() if stat.S_ISREG(now.mode))
        if size > self._max_bytes:
            raise CannotKeep(
                _("its files are {size} together, more than {limit}").format(
                    size=bytes_text(size), limit=bytes_text(self._max_bytes)
                )
            )
        try:
            files = {path: self._store(path, now) for path, now in sorted(found.items())}
        except OSError as error:
            raise CannotKeep(_("{file}: {why}").format(file=error.filename, why=error.strerror)) from error
        old = self._kept.get(name)
        kept = KeptBuild(name, files, size)
        self._kept[name] = kept
        self._incomplete.discard(name)
        if old is not None:
            self._delete_copies(old)
        return kept

    def place(self, kept: KeptBuild) -> tuple[str, ...]:
        """Put the kept build's artefacts back exactly, with their modes and times; return the paths it touched.

        Artefacts that it did not have are removed; files that hold the right content already are left alone. Raises
        `CannotKeep` when a copy was damaged or the build is incomplete (see `Learned.lost`).
        """
        if self._kept.get(kept.name) is not kept or kept.name in self._incomplete:
            raise CannotKeep(_("a later build overwrote files of it that were not kept"))
        touched = []
        try:
            for path in sorted(self.artefacts):
                if (self.root / path).parent.resolve() != (self.root / path).parent:
                    raise CannotKeep(_("the folder of {file} became a link").format(file=path))
            for path in sorted(self.artefacts - kept.files.keys()):
                if signature(self.root / path) is not None:
                    self._ours(path)
                    (self.root / path).unlink()
                    self._left.pop(path, None)
                    touched.append(path)
                self._contents.pop(path, None)
            touched.extend(path for path, file in kept.files.items() if self._put(path, file))
        except OSError as error:
            raise CannotKeep(_("{file}: {why}").format(file=error.filename, why=error.strerror)) from error
        return tuple(touched)

    def drop(self, kept: KeptBuild) -> None:
        """Forget a kept build and delete the copies that no other one needs."""
        if self._kept.get(kept.name) is kept:
            del self._kept[kept.name]
        self._incomplete.discard(kept.name)
        self._delete_copies(kept)

    def _delete_copies(self, kept: KeptBuild) -> None:
        needed = {file.digest for other in self._kept.values() for file in other.files.values()}
        for file in kept.files.values():
            if stat.S_ISREG(file.mode) and file.digest not in needed:
                self._copy_of(file.digest).unlink(missing_ok=True)
                self._sound.pop(file.digest, None)

    def _store(self, path: str, now: Signature) -> _Kept:
        source = self.root / path
        if stat.S_ISLNK(now.mode):
            return _Kept(now.mode, now.mtime_ns, os.readlink(source))  # noqa: PTH115 -- the text itself
        content = self._digest(path, now)
        copy = self._copy_of(content)
        if not copy.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
            if free < now.size + SPARE_BYTES:
                raise CannotKeep(
                    _("only {free} are free on the disk of {folder}").format(
                        free=bytes_text(free), folder=self._folder
                    )
                )
            part = copy.with_suffix(".part")
            part.unlink(missing_ok=True)
            copy_file(source, part)
            if digest(part) != content or signature(source) != now:
                part.unlink()
                raise CannotKeep(_("{file} changed while it was copied").format(file=path))
            part.chmod(0o400)
            part.replace(copy)
        return _Kept(now.mode, now.mtime_ns, content)

    def _digest(self, path: str, now: Signature) -> str:
        known = self._contents.get(path)
        if known and known[0] == now:
            return known[1]
        content = digest(self.root / path)
        if time.time_ns() - now.mtime_ns > RACY_NS:
            self._contents[path] = (now, content)
        return content

    def _put(self, path: str, file: _Kept) -> bool:
        """Write one artefact unless it is there as it should be; return whether it was written."""
        target = self.root / path
        now = signature(target)
        if now and (now.mode, now.mtime_ns) == (file.mode, file.mtime_ns):
            if stat.S_ISLNK(now.mode):
                if os.readlink(target) == file.digest:  # noqa: PTH115
                    return False
            elif self._digest(path, now) == file.digest:
                return False
        self._ours(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.tachyon-part")
        part.unlink(missing_ok=True)
        if stat.S_ISLNK(file.mode):
            part.symlink_to(file.digest)
            os.utime(part, ns=(file.mtime_ns, file.mtime_ns), follow_symlinks=False)
        else:
            self._copy_out(file.digest, part, path)
            part.chmod(stat.S_IMODE(file.mode))
            os.utime(part, ns=(file.mtime_ns, file.mtime_ns))
        part.replace(target)
        put = signature(target)
        if put:
            self._left[path] = put
        if put and stat.S_ISREG(file.mode):
            self._contents[path] = (put, file.digest)
        return True

    def _copy_out(self, content: str, part: Path, path: str) -> None:
        copy = self._copy_of(content)
        traces, now = _traces(copy), time.time_ns()
        copy_file(copy, part)
        if self._sound.get(content) == traces == _traces(copy):
            return
        if digest(part) != content:
            part.unlink()
            raise CannotKeep(_("the copy of {file} was damaged").format(file=path))
        if now - traces[0] > RACY_NS:
            self._sound[content] = traces

    def _copy_of(self, content: str) -> Path:
        return self._folder / content


def _traces(path: Path) -> tuple[int, ...]:
    """What the kernel keeps of a file's changes; no program can set the time of the inode's change back."""
    info = path.lstat()
    return info.st_ctime_ns, info.st_mtime_ns, info.st_size, info.st_ino
