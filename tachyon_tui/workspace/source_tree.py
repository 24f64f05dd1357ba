"""The files that the agent may edit, as they are on disk: read, edited, snapshotted, restored, shown as patches."""

from __future__ import annotations

import base64
import difflib
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tachyon_tui.core.i18n import _
from tachyon_tui.workspace.editable import EditableSet, NotEditable
from tachyon_tui.workspace.edits import (
    MAX_FILE_BYTES,
    EditProblem,
    How,
    apply_edit,
    decode_source,
    unusable_text,
)
from tachyon_tui.workspace.problems import ForeignChange, Problem

NEW_FILE_MODE = 0o644


@dataclass(frozen=True)
class FileState:
    """One file: its bytes and permission bits."""

    content: bytes
    mode: int


@dataclass(frozen=True)
class Snapshot:
    """The files of the editable set at one time; a path that is missing did not exist."""

    files: Mapping[str, FileState]

    def save(self, path: Path) -> None:
        """Write it to a file that `load` reads."""
        data = {
            name: [state.mode, base64.b64encode(state.content).decode()] for name, state in self.files.items()
        }
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(data), encoding="utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        """What `save` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            {name: FileState(base64.b64decode(content), mode) for name, (mode, content) in data.items()}
        )


@dataclass(frozen=True)
class Edit:
    """One edit that was made."""

    path: str
    diff: str
    """Unified diff."""
    added: int
    removed: int
    line: int = 1
    """First line of the place, counted from 1."""
    how: How = "exact"


class SourceTree:
    """Reads and writes the editable files, and never overwrites what somebody else wrote to them."""

    def __init__(self, root: Path, editable: EditableSet) -> None:
        self.root = root
        self.editable = editable
        self._known: dict[str, FileState] = {}
        self._folders: list[Path] = []
        self.adopt()
        self._last = Snapshot(dict(self._known))

    def adopt(self) -> None:
        """Take what is on disk now as known, whoever wrote it."""
        found = {path: _read(self.root / path) for path in self.editable.files | self.editable.created}
        self._known = {path: state for path, state in found.items() if state is not None}

    def foreign_changes(self) -> tuple[str, ...]:
        """Files that are not on disk as we last saw or wrote them."""
        paths = sorted(self._known.keys() | set(self.editable.files))
        return tuple(path for path in paths if _read(self.root / path) != self._known.get(path))

    def read(self, path: str) -> str:
        """The text of an editable file.

        Raises `NotEditable`, `EditProblem` when it is no text, `ForeignChange`.
        """
        path = self.editable.check(path)
        return decode_source(self._current(path).content)

    def edit(self, path: str, old: str, new: str) -> Edit:
        """Replace ``old`` by ``new`` in an editable file (see `apply_edit`).

        Raises `NotEditable`, `EditProblem`, `ForeignChange`.
        """
        path = self.editable.check(path)
        state = self._current(path)
        result = apply_edit(decode_source(state.content), old, new)
        return self._put(path, FileState(result.text.encode(), state.mode), result.line, result.how)

    def create(self, path: str, text: str) -> Edit:
        """Make a new file inside the editable set. Raises `NotEditable` and `EditProblem`."""
        path = self.editable.check_new(path)
        why = unusable_text(text) or ("" if text.strip() else _("it is blank"))
        if why:
            raise EditProblem(_("new_text cannot be written: {why}.").format(why=why))
        if len(text.encode()) > MAX_FILE_BYTES:
            raise EditProblem(_("The file would be larger than {limit} bytes.").format(limit=MAX_FILE_BYTES))
        missing = [folder for folder in (self.root / path).parents if not folder.exists()]
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        self._folders.extend(missing)
        edit = self._put(path, FileState(text.encode(), NEW_FILE_MODE), 1, "exact")
        self.editable.created.add(path)
        return edit

    def snapshot(self) -> Snapshot:
        """The editable files as they are. Raises `ForeignChange` when somebody else wrote to them."""
        self._refuse_foreign(self.foreign_changes())
        self._last = Snapshot(dict(self._known))
        return self._last

    def changed_since_snapshot(self, snapshot: Snapshot | None = None) -> tuple[str, ...]:
        """Paths whose content we made differ from ``snapshot`` (None: the last one taken)."""
        return _differing((snapshot or self._last).files, self._known)

    def matches(self, snapshot: Snapshot) -> bool:
        """Whether the disk holds exactly ``snapshot``, as far as the editable files go."""
        paths = self._known.keys() | set(self.editable.files) | snapshot.files.keys()
        return all(_read(self.root / path) == snapshot.files.get(path) for path in paths)

    def restore(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Bring back exactly ``snapshot``, each written file with a new modification time; return their paths.

        Files made since are removed, with the folders that were made for them when these are empty. Raises
        `ForeignChange`, and then touches nothing, when a file is not as we last wrote it.
        """
        paths = _differing(snapshot.files, self._known)
        self._refuse_foreign(
            tuple(path for path in paths if _read(self.root / path) != self._known.get(path))
        )
        for path in paths:
            state = snapshot.files.get(path)
            if state is None:
                (self.root / path).unlink()
                del self._known[path]
                self.editable.created.discard(path)
            else:
                if path not in self._known and path not in self.editable.files:
                    self.editable.created.add(path)
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                _write(self.root / path, state)
                self._known[path] = state
        self._remove_empty_folders()
        return paths

    def touch(self) -> None:
        """Give every editable file a new modification time, so that the next build makes all that hangs on them."""
        for path in self._known:
            _make_newer(self.root / path, (self.root / path).stat().st_mtime_ns)

    def diff(self, before: Snapshot, after: Snapshot | None = None) -> str:
        """A patch from ``before`` to ``after`` (None: to what we last wrote) that ``git apply`` accepts."""
        end = self._known if after is None else after.files
        return "".join(
            patch(path, before.files.get(path), end.get(path)) for path in _differing(before.files, end)
        )

    def _current(self, path: str) -> FileState:
        state = self._known.get(path)
        if state is None or _read(self.root / path) != state:
            self._refuse_foreign((path,))
            raise NotEditable(_("{path} does not exist.").format(path=path))
        return state

    def _put(self, path: str, state: FileState, line: int, how: How) -> Edit:
        before = self._known.get(path)
        _write(self.root / path, state)
        self._known[path] = state
        text = patch(path, before, state)
        body = text[text.find("\n@@ ") + 1 :].split("\n")
        return Edit(
            path=path,
            diff=text,
            added=sum(row.startswith("+") for row in body),
            removed=sum(row.startswith("-") for row in body),
            line=line,
            how=how,
        )

    def _refuse_foreign(self, paths: tuple[str, ...]) -> None:
        if paths:
            raise ForeignChange(
                _("Somebody else changed {files}.").format(files=", ".join(paths)),
                _(
                    "Nothing was overwritten. Undo that change to go on; the candidate is kept as a patch as well."
                ),
                paths,
            )

    def _remove_empty_folders(self) -> None:
        for folder in sorted(self._folders, key=lambda folder: len(folder.parts), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        self._folders = [folder for folder in self._folders if folder.exists()]


def _differing(before: Mapping[str, FileState], after: Mapping[str, FileState]) -> tuple[str, ...]:
    return tuple(path for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path))


def _read(path: Path) -> FileState | None:
    """The file, or None when there is no regular file (a symbolic link is none)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            return None
        return FileState(file.read(), stat.S_IMODE(info.st_mode))


def _write(path: Path, state: FileState) -> None:
    """Replace the file in one step, with a new modification time; owner and extended attributes are kept.

    Raises `Problem` when the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.tachyon-part")
    old = path.stat() if path.exists() else None
    try:
        # Made anew, so that a link that somebody put there is not followed.
        part.unlink(missing_ok=True)
        with part.open("xb") as file:
            file.write(state.content)
        if old:
            shutil.copystat(path, part)
            if (old.st_uid, old.st_gid) != (part.stat().st_uid, part.stat().st_gid):
                _give_to(part, old.st_uid, old.st_gid)
        part.chmod(state.mode)
        _make_newer(part, old.st_mtime_ns if old else 0)
        part.replace(path)
    except OSError as error:
        if part.is_file():
            part.unlink()
        raise Problem(
            _("{path} cannot be written: {why}.").format(path=path, why=error.strerror),
            _("Make its folder writable and see that the disk is not full."),
        ) from error


def _give_to(path: Path, user: int, group: int) -> None:
    try:
        os.chown(path, user, group)
    except PermissionError:
        return  # only root may give files away; the content and the permission bits matter more


def _make_newer(path: Path, than: int) -> None:
    """A modification time later than ``than`` ns and than everything that was written until now.

    The kernel stamps files with a clock of some ms granularity, so a file that is written right after a build could
    bear the build's own time, and make(1) would not build again.
    """
    now = max(time.time_ns(), path.stat().st_mtime_ns, than + 1)
    os.utime(path, ns=(now, now))


def patch(path: str, before: FileState | None, after: FileState | None) -> str:
    """The unified diff of one file in git's own form; empty when both are the same."""
    if before == after:
        return ""
    old, new = _quote("a/" + path), _quote("b/" + path)
    head = [f"diff --git {old} {new}"]
    if before is None and after is not None:
        head.append(f"new file mode {_git_mode(after)}")
    elif after is None and before is not None:
        head.append(f"deleted file mode {_git_mode(before)}")
    elif before and after and _git_mode(before) != _git_mode(after):
        head += [f"old mode {_git_mode(before)}", f"new mode {_git_mode(after)}"]
    rows = list(
        difflib.unified_diff(
            _rows(before.content if before else b""),
            _rows(after.content if after else b""),
            n=3,
            lineterm="\n",
        )
    )
    if rows:
        # git ends a name that holds a space with a tab, for the sake of patch(1).
        tab = "\t" if " " in path else ""
        rows[0] = "--- " + (old + tab if before else "/dev/null") + "\n"
        rows[1] = "+++ " + (new + tab if after else "/dev/null") + "\n"
    body = "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)
    return "\n".join(head) + "\n" + body


def _rows(content: bytes) -> list[str]:
    text = content.decode("utf-8", "surrogateescape")
    rows = [row + "\n" for row in text.split("\n")]
    rows[-1] = rows[-1][:-1]
    return rows if rows[-1] else rows[:-1]


def _git_mode(state: FileState) -> str:
    return "100755" if state.mode & 0o100 else "100644"


def _quote(path: str) -> str:
    """A path as git writes it into a patch: in quotes, with octal escapes, when it holds anything unusual."""
    raw = os.fsencode(path)
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return path
    return '"' + "".join(_escape(byte) for byte in raw) + '"'


def _escape(byte: int) -> str:
    if byte in b'"\\':
        return "\\" + chr(byte)
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
