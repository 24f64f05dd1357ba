"""The session directory: the interface between the engine and everyone else.

`journal.jsonl` has one writer, the engine; `commands.jsonl` is appended by anyone, whole lines under flock.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from tachyon_tui.core.commands import COMMAND
from tachyon_tui.core.events import EVENT, EVENT_TYPES, SCHEMA
from tachyon_tui.core.i18n import _
from tachyon_tui.core.redact import redact
from tachyon_tui.core.regular import open_regular

JOURNAL = "journal.jsonl"
COMMANDS = "commands.jsonl"
LOCK = "engine.lock"
SETTINGS = "session.json"
SYNCED = frozenset(
    {"session_started", "state_changed", "round_finished", "reverted", "session_finished", "calibrated"}
)
"""Events whose line is on the disk (fsync) before the engine goes on."""
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


class SessionError(Exception):
    """A session cannot be opened, written or owned; ``fix`` says what to do."""

    def __init__(self, message: str, fix: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.exit_code = exit_code
        """What the command that meets it exits with."""


@dataclass(frozen=True)
class SessionPaths:
    """Where everything of one session lies."""

    folder: Path

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def journal(self) -> Path:
        return self.folder / JOURNAL

    @property
    def commands(self) -> Path:
        return self.folder / COMMANDS

    @property
    def lock(self) -> Path:
        return self.folder / LOCK

    @property
    def settings(self) -> Path:
        return self.folder / SETTINGS

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    @property
    def patches(self) -> Path:
        return self.folder / "patches"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def builds(self) -> Path:
        return self.folder / "builds"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"


def find_root(start: Path) -> Path | None:
    """The top of the git work tree that holds ``start``, None outside of one."""
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / ".git").exists():
            return folder
    return None


def sessions_folder(root: Path) -> Path:
    """Where the sessions of a project lie."""
    return root / ".tachyon" / "sessions"


def create_session(root: Path, program: str, settings: dict[str, Any]) -> SessionPaths:
    """Make the directory of a new session; raises `SessionError` when the disk does not let us."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(program).name or "session").strip("-.")[:40] or "session"
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    parent = sessions_folder(root)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(100):
            folder = parent / (stem if not attempt else f"{stem}-{attempt}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            break
        else:
            raise SessionError(_("100 sessions were started in this second."), _("Wait a moment."))
        paths = SessionPaths(folder)
        for sub in (paths.reports, paths.patches, paths.logs, paths.builds, paths.scratch):
            sub.mkdir()
        paths.settings.write_text(redact(json.dumps(settings, indent=2, sort_keys=True)) + "\n", "utf-8")
        paths.commands.touch()
    except OSError as error:
        raise SessionError(
            _("The session directory cannot be written: {why}.").format(why=error),
            _("Free some disk space or make {folder} writable.").format(folder=parent),
        ) from error
    return paths


def list_sessions(root: Path) -> list[SessionPaths]:
    """All sessions of a project, oldest first."""
    folder = sessions_folder(root)
    if not folder.is_dir():
        return []
    return [SessionPaths(f) for f in sorted(folder.iterdir()) if (f / JOURNAL).is_file()]


def find_session(root: Path, name: str = "") -> SessionPaths:
    """The session called ``name`` (its id, a unique part of it, or a path), else the latest one."""
    if name and (Path(name) / JOURNAL).is_file():
        return SessionPaths(Path(name).resolve())
    sessions = list_sessions(root)
    found = [s for s in sessions if name in s.id]
    if not found:
        known = ", ".join(s.id for s in sessions[-5:]) or _("none")
        raise SessionError(
            _("No session matches {name!r} in {root}.").format(name=name, root=root),
            _("Latest sessions: {known}.").format(known=known),
        )
    if name and len(found) > 1 and not any(s.id == name for s in found):
        raise SessionError(
            _("{name!r} matches {count} sessions.").format(name=name, count=len(found)),
            _("Give more of the name: {known}.").format(known=", ".join(s.id for s in found[-5:])),
        )
    return next((s for s in found if s.id == name), found[-1])


class Journal:
    """The engine's end of the journal: appends events, one JSON line each."""

    def __init__(self, paths: SessionPaths, last_seq: int = 0) -> None:
        self._path = paths.journal
        self._file: BinaryIO = self._path.open("ab", buffering=0)
        self._seq = last_seq
        self._listeners: list[Callable[[Any], None]] = []

    def listen(self, listener: Callable[[Any], None]) -> None:
        """Call ``listener`` with every event after it was written, in the engine's thread."""
        self._listeners.append(listener)

    def append(self, event: Any) -> Any:
        """Write the event with its number and time; returns it as written.

        Raises `SessionError` when the disk is full: a journal with holes would be worse than an end.
        """
        event = event.model_copy(update={"seq": self._seq + 1, "time": time.time()})
        line = _json_line(event)
        size = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(line)
            if written != len(line):
                os.ftruncate(self._file.fileno(), size)
                raise OSError(28, os.strerror(28))
            if event.type in SYNCED:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise SessionError(
                _("The journal cannot be written: {why}.").format(why=error),
                _("Free some disk space, then start again: it begins at the last accepted commit."),
            ) from error
        self._seq += 1
        for listener in self._listeners:
            listener(event)
        return event

    def close(self) -> None:
        """Close the file; further appends fail."""
        self._file.close()


def _json_line(event: Any) -> bytes:
    try:
        text = event.model_dump_json()
    except ValueError:
        # Half a surrogate pair, as a model's stream or a file name that is no UTF-8 may hold.
        text = json.dumps(event.model_dump(), ensure_ascii=False, separators=(",", ":"))
    return redact(text).encode("utf-8", "replace") + b"\n"


class LineFollower:
    """Yields whole new lines of a growing file; a line without its end is left for the next call."""

    def __init__(self, path: Path, chunk: int = 1 << 20) -> None:
        self._path = path
        self._offset = 0
        self._chunk = chunk

    def lines(self) -> Iterator[bytes]:
        """Lines that are complete by now, without their newline; none when the file does not exist."""
        try:
            file = open_regular(self._path)
        except OSError:
            return
        with file:
            if os.fstat(file.fileno()).st_size <= self._offset:
                return
            file.seek(self._offset)
            rest = b""
            while True:
                block = file.read(self._chunk)
                if not block:
                    return
                *whole, rest = (rest + block).split(b"\n")
                for line in whole:
                    self._offset += len(line) + 1
                    if line:
                        yield line


def parse_event(line: bytes) -> Any | None:
    """The event of one journal line; None for a type that this version does not know.

    Raises `SessionError` for anything that is no event, and for a journal of a newer schema.
    """
    try:
        event = EVENT.validate_json(line)
    except ValidationError as error:
        try:
            kind = json.loads(line).get("type")
        except (ValueError, AttributeError):
            kind = None
        if isinstance(kind, str) and kind not in EVENT_TYPES:
            return None
        raise SessionError(
            _("The journal is damaged: {line}").format(line=line[:80].decode("utf-8", "replace")),
            _("The session cannot be shown; its commits and patches are untouched."),
        ) from error
    if event.type == "session_started" and event.schema_version > SCHEMA:
        raise SessionError(
            _("The journal was written by a newer version of tachyon (schema {schema}).").format(
                schema=event.schema_version
            ),
            _("Upgrade with `pip install --upgrade tachyon-tui`."),
        )
    return event


class JournalReader:
    """A reader's end of the journal; memory does not grow with its length."""

    def __init__(self, paths: SessionPaths) -> None:
        self._follower = LineFollower(paths.journal)

    def events(self) -> Iterator[Any]:
        """Events appended since the last call; raises `SessionError` on a damaged line."""
        for line in self._follower.lines():
            event = parse_event(line)
            if event is not None:
                yield event


def drop_torn_line(paths: SessionPaths) -> bool:
    """Cut a last line that has no end (a crash in the middle of a write); True when there was one."""
    with paths.journal.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        size = end = file.tell()
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            cut = file.read(end - start).rfind(b"\n")
            if cut >= 0:
                end = start + cut + 1
                break
            end = start
        if end == size:
            return False
        file.truncate(end)
        return True


def append_command(paths: SessionPaths, command: Any) -> None:
    """Append one command as a whole line; safe against other writers. Raises `SessionError`."""
    try:
        with paths.commands.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(command.model_dump_json().encode() + b"\n")
    except OSError as error:
        raise SessionError(
            _("The command cannot be written: {why}.").format(why=error), _("Is the session still there?")
        ) from error


class CommandReader:
    """The engine's end of `commands.jsonl`; a line that is no command is handed over as an error text."""

    def __init__(self, paths: SessionPaths) -> None:
        self._follower = LineFollower(paths.commands)

    def commands(self) -> Iterator[Any | str]:
        """Commands appended since the last call, in order."""
        for line in self._follower.lines():
            try:
                yield COMMAND.validate_json(line)
            except ValidationError as error:
                yield f"{line[:80].decode('utf-8', 'replace')}: {error.errors()[0]['msg']}"


@dataclass(frozen=True)
class Owner:
    """Which engine holds a session or a work tree."""

    pid: int
    host: str
    started: float
    beat: float
    session: str = ""

    def alive(self) -> bool:
        """False when the process is gone (same host) or its heartbeat is old (another host)."""
        if self.host == socket.gethostname():
            return Path(f"/proc/{self.pid}").exists()
        return time.time() - self.beat < STALE_SECONDS


def read_owner(lock: Path) -> Owner | None:
    """Who wrote the lock file, None when nobody did or it cannot be read."""
    try:
        data = json.loads(lock.read_text("utf-8"))
        return Owner(**data)
    except (OSError, ValueError, TypeError):
        return None


class EngineLock:
    """Held by the one engine of a session or work tree: flock, and the owner inside where flock means nothing."""

    def __init__(self, path: Path, session: str = "") -> None:
        self._path = path
        self._session = session
        self._file: BinaryIO | None = None
        self._started = time.time()
        self._last_beat = 0.0

    def acquire(self) -> None:
        """Take the lock or raise `SessionError` naming the owner."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SessionError(
                _("The lock {file} cannot be written: {why}.").format(file=self._path, why=error.strerror),
                _("Make the folder writable, and see that the disk is not full."),
            ) from error
        file = os.fdopen(handle, "r+b", buffering=0)
        owner = read_owner(self._path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = owner is None or owner.host == socket.gethostname() or not owner.alive()
        except BlockingIOError:
            free = False
        except OSError:
            free = owner is None or not owner.alive()
        if not free:
            file.close()
            where = f"pid {owner.pid}, {owner.host}" if owner else "?"
            raise SessionError(
                _("Another engine works here ({where}).").format(where=where),
                _("Watch it with `tachyon attach`, or end it with `tachyon stop`."),
            )
        self._file = file
        self.beat()

    def beat(self) -> None:
        """Renew the heartbeat; call it often, it writes at most every 10 s."""
        now = time.time()
        if self._file is None or now - self._last_beat < HEARTBEAT_SECONDS:
            return
        self._last_beat = now
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": self._started,
            "beat": now,
            "session": self._session,
        }
        data = json.dumps(owner).encode()
        os.pwrite(self._file.fileno(), data, 0)
        os.ftruncate(self._file.fileno(), len(data))

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.ftruncate(self._file.fileno(), 0)
            self._file.close()
            self._file = None
