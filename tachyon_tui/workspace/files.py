"""What lies below the project's root: one quick look at every file, and copies that lose nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

SKIPPED = frozenset({".git", ".tachyon"})
CHUNK = 1024 * 1024


class Signature(NamedTuple):
    """What changes when a file is written, short of its content."""

    mtime_ns: int
    size: int
    inode: int
    mode: int
    """With the type bits, as in `os.stat_result.st_mode`."""


Scan = Mapping[str, Signature]
"""Signatures by path relative to the root, with forward slashes; regular files and symbolic links."""


def scan_files(root: Path) -> dict[str, Signature]:
    """Look at every regular file and symbolic link below ``root``, except in .git and .tachyon."""
    found: dict[str, Signature] = {}
    folders = [(str(root), "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue  # gone in the meantime, or not ours to read: then no build of ours writes there
        for entry in entries:
            name = entry.name
            if name in SKIPPED:
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, f"{prefix}{name}/"))
                    continue
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                found[prefix + name] = _signature(info)
    return found


def empty_folder(folder: Path) -> None:
    """Make the folder, or take out all that is in it; a link in its place is removed, not followed.

    Its entry stays, as making and removing folders is what costs time. Raises `OSError`.
    """
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)  # noqa: PTH108 -- the entry is text


def signature(path: Path) -> Signature | None:
    """The signature of one file; None when it is gone."""
    try:
        return _signature(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _signature(info: os.stat_result) -> Signature:
    return Signature(info.st_mtime_ns, info.st_size, info.st_ino, info.st_mode)


def written(before: Scan, after: Scan) -> frozenset[str]:
    """Files that were made or rewritten between two scans."""
    return frozenset(path for path, now in after.items() if before.get(path) != now)


def removed(before: Scan, after: Scan) -> frozenset[str]:
    """Files that went away between two scans."""
    return frozenset(before.keys() - after.keys())


def is_binary(path: Path) -> bool:
    """Whether the file is an object file, a shared library, a program or a cubin (all of them ELF)."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return _digest(file)


def _digest(file: BinaryIO) -> str:
    total = hashlib.sha256()
    while data := file.read(CHUNK):
        total.update(data)
    return total.hexdigest()


def copy_file(source: Path, target: Path) -> None:
    """Copy the content into a new file at ``target``, sharing blocks where the file system can."""
    with source.open("rb") as reader, target.open("xb") as writer:
        size = os.fstat(reader.fileno()).st_size
        try:
            while size > 0:
                count = os.copy_file_range(reader.fileno(), writer.fileno(), size)
                if count == 0:
                    break
                size -= count
        except OSError:
            # Not on this kernel, or not between these two file systems.
            reader.seek(0)
            writer.seek(0)
            writer.truncate()
            shutil.copyfileobj(reader, writer, CHUNK)
