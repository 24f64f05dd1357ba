"""The session directory: journal, commands, lock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from pydantic import BaseModel
from support import calibrated, finished, session, started, write

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tachyon_tui.core.session import (
    CommandReader,
    EngineLock,
    Journal,
    JournalReader,
    LineFollower,
    SessionError,
    SessionPaths,
    append_command,
    create_session,
    drop_torn_line,
    find_root,
    find_session,
    list_sessions,
    parse_event,
    read_owner,
)

EVENT_CLASSES = [
    cls
    for cls in vars(e).values()
    if isinstance(cls, type) and issubclass(cls, BaseModel) and "type" in cls.model_fields
]


def events_of(paths: SessionPaths) -> list[Any]:
    return list(JournalReader(paths).events())


class TestJournal:
    def test_events_are_numbered_and_read_back(self, tmp_path: Path) -> None:
        paths = session(tmp_path, [started(), calibrated()])
        write(paths, [finished()], last_seq=2)
        found = events_of(paths)
        assert [event.seq for event in found] == [1, 2, 3]
        assert [event.type for event in found] == ["session_started", "calibrated", "session_finished"]
        assert all(event.time > 0 for event in found)

    @profile(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(event=st.sampled_from(EVENT_CLASSES).flatmap(st.from_type))
    def test_every_event_survives_the_journal(self, tmp_path: Path, event: Any) -> None:
        paths = SessionPaths(tmp_path)
        paths.journal.unlink(missing_ok=True)
        journal = Journal(paths)
        written = journal.append(
            event.model_copy(update={"schema_version": 1} if event.type == "session_started" else {})
        )
        journal.close()
        [back] = events_of(paths)
        assert repr(back) == repr(written)  # as text, for a NaN differs from itself

    @pytest.mark.parametrize("figure", [float("nan"), float("inf"), float("-inf")])
    def test_a_figure_that_is_no_number_does_not_damage_the_journal(
        self, tmp_path: Path, figure: float
    ) -> None:
        paths = session(tmp_path, [calibrated(noise_percent=figure), finished()])
        assert repr(events_of(paths)[0].noise_percent) == repr(figure)

    def test_half_a_surrogate_pair_can_be_written(self, tmp_path: Path) -> None:
        paths = session(tmp_path, [e.AgentText(round=1, text="a\ud83d b"), finished()])
        first, last = events_of(paths)
        assert first.text == "a? b"
        assert last.type == "session_finished"

    def test_listeners_hear_what_was_written(self, tmp_path: Path) -> None:
        journal = Journal(session(tmp_path))
        heard: list[Any] = []
        journal.listen(heard.append)
        written = journal.append(finished())
        journal.close()
        assert heard == [written]

    def test_a_reader_sees_each_event_once_as_it_comes(self, tmp_path: Path) -> None:
        paths = session(tmp_path)
        reader = JournalReader(paths)
        assert list(reader.events()) == []
        write(paths, [started()])
        assert [event.seq for event in reader.events()] == [1]
        assert list(reader.events()) == []
        write(paths, [finished()], last_seq=1)
        assert [event.seq for event in reader.events()] == [2]

    def test_no_journal_yet(self, tmp_path: Path) -> None:
        assert events_of(SessionPaths(tmp_path / "nowhere")) == []

    def test_a_torn_line_waits_for_its_end(self, tmp_path: Path) -> None:
        paths = session(tmp_path, [started(), finished()])
        whole = paths.journal.read_bytes()
        paths.journal.write_bytes(whole[:-10])
        reader = JournalReader(paths)
        assert [event.seq for event in reader.events()] == [1]
        paths.journal.write_bytes(whole)
        assert [event.seq for event in reader.events()] == [2]

    @pytest.mark.parametrize("torn", [b"", b'{"seq":3,"ti', b"x" * 200_000])
    def test_a_torn_line_is_dropped_on_resume(self, tmp_path: Path, torn: bytes) -> None:
        paths = session(tmp_path, [started(), finished()])
        whole = paths.journal.read_bytes()
        paths.journal.write_bytes(whole + torn)
        assert drop_torn_line(paths) == bool(torn)
        assert paths.journal.read_bytes() == whole

    def test_a_journal_of_only_a_torn_line(self, tmp_path: Path) -> None:
        paths = session(tmp_path)
        paths.journal.write_bytes(b'{"seq":1')
        assert drop_torn_line(paths)
        assert paths.journal.read_bytes() == b""

    def test_an_unknown_type_is_skipped(self, tmp_path: Path) -> None:
        paths = session(tmp_path, [started()])
        with paths.journal.open("ab") as file:
            file.write(b'{"seq":2,"time":1.0,"type":"moon_phase","phase":"full"}\n')
        write(paths, [finished()], last_seq=2)
        assert [event.seq for event in events_of(paths)] == [1, 3]

    @pytest.mark.parametrize(
        "line", [b"rubbish", b"[1]", b"{}", b'{"type":"session_finished"}', b'{"type":7}']
    )
    def test_a_damaged_line_is_an_error(self, line: bytes) -> None:
        with pytest.raises(SessionError, match="damaged") as caught:
            parse_event(line)
        assert caught.value.fix

    def test_a_newer_schema_is_refused(self, tmp_path: Path) -> None:
        paths = session(tmp_path, [started(schema_version=e.SCHEMA + 1)])
        with pytest.raises(SessionError, match="newer version") as caught:
            events_of(paths)
        assert "upgrade" in caught.value.fix

    def test_unknown_fields_of_a_known_event_are_ignored(self) -> None:
        event = parse_event(b'{"type":"round_started","round":4,"colour":"red"}')
        assert event == e.RoundStarted(round=4)

    def test_secrets_do_not_reach_the_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
        paths = session(tmp_path, [e.Notice(level="error", message="bad key correct-horse-battery")])
        assert b"horse" not in paths.journal.read_bytes()

    def test_a_full_disk_leaves_a_whole_journal(self, tmp_path: Path) -> None:
        """A limit on the size of files stands in for the full disk."""
        paths = session(tmp_path)
        code = """
import resource, signal, sys
from pathlib import Path
from tachyon_tui.core.events import Notice
from tachyon_tui.core.session import Journal, SessionError, SessionPaths
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
journal = Journal(SessionPaths(Path(sys.argv[1])))
try:
    while True:
        journal.append(Notice(level="info", message="x" * 100))
except SessionError as error:
    print(error.fix)
"""
        done = run_python(code, str(paths.folder))
        assert "Free some disk space" in done.stdout
        data = paths.journal.read_bytes()
        assert 1000 < len(data) <= 2000
        assert data.endswith(b"\n")
        assert len(events_of(paths)) == data.count(b"\n")


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process that can import the package."""
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


class TestLineFollower:
    @pytest.mark.parametrize("chunk", [1, 7, 4096])
    def test_lines_across_chunks(self, tmp_path: Path, chunk: int) -> None:
        file = tmp_path / "f"
        file.write_bytes(b"one\n\ntwo is longer\nthr")
        follower = LineFollower(file, chunk)
        assert list(follower.lines()) == [b"one", b"two is longer"]
        with file.open("ab") as more:
            more.write(b"ee\nfour\n")
        assert list(follower.lines()) == [b"three", b"four"]

    def test_a_reader_that_stops_half_way_goes_on_there(self, tmp_path: Path) -> None:
        file = tmp_path / "f"
        file.write_bytes(b"one\ntwo\nthree\n")
        follower = LineFollower(file)
        assert next(follower.lines()) == b"one"
        assert list(follower.lines()) == [b"two", b"three"]


class TestCommands:
    @pytest.mark.parametrize(
        "command",
        [
            c.Steer(text="use [shared] memory\n归约"),
            c.Pause(),
            c.Continue(),
            c.Step(),
            c.Skip(),
            c.Stop(after_round=True),
            c.Review(on=False),
            c.Accept(candidate="3-1"),
            c.Revert(round=2, confirmed=True),
        ],
    )
    def test_round_trip(self, tmp_path: Path, command: Any) -> None:
        paths = session(tmp_path)
        reader = CommandReader(paths)
        append_command(paths, command)
        assert list(reader.commands()) == [command]
        assert list(reader.commands()) == []

    def test_ids_differ(self) -> None:
        assert c.Pause().id != c.Pause().id

    def test_what_is_no_command_is_handed_over_as_text(self, tmp_path: Path) -> None:
        paths = session(tmp_path)
        paths.commands.write_bytes(b'{"type":"explode"}\n\xff\n')
        append_command(paths, c.Pause())
        found: list[Any] = list(CommandReader(paths).commands())
        first, second, third = found
        assert isinstance(first, str)
        assert "explode" in first
        assert isinstance(second, str)
        assert third.type == "pause"

    def test_two_writers_never_mix_their_lines(self, tmp_path: Path) -> None:
        paths = session(tmp_path)
        texts = [f"{writer}{number}-" + "x" * 5000 for writer in "ab" for number in range(40)]

        def send(writer: str) -> None:
            for text in texts:
                if text.startswith(writer):
                    append_command(paths, c.Steer(text=text))

        threads = [threading.Thread(target=send, args=(writer,)) for writer in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found: list[Any] = list(CommandReader(paths).commands())
        read = [command.text for command in found]
        assert sorted(read) == sorted(texts)
        assert [t for t in read if t.startswith("a")] == [t for t in texts if t.startswith("a")]

    def test_a_session_that_is_gone(self, tmp_path: Path) -> None:
        with pytest.raises(SessionError, match="cannot be written"):
            append_command(SessionPaths(tmp_path / "gone"), c.Pause())


def owner_file(path: Path, **changes: Any) -> None:
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": 0.0,
        "beat": time.time(),
        "session": "s",
    }
    path.write_text(json.dumps(owner | changes), "utf-8")


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(30)
    return child.pid


class TestLock:
    def test_one_owner_at_a_time(self, tmp_path: Path) -> None:
        lock = EngineLock(tmp_path / "deep" / "engine.lock", "mine")
        lock.acquire()
        owner = read_owner(tmp_path / "deep" / "engine.lock")
        assert owner is not None
        assert (owner.pid, owner.session, owner.alive()) == (os.getpid(), "mine", True)
        with pytest.raises(SessionError, match=str(os.getpid())) as caught:
            EngineLock(tmp_path / "deep" / "engine.lock").acquire()
        assert "tachyon attach" in caught.value.fix
        lock.release()
        assert read_owner(tmp_path / "deep" / "engine.lock") is None
        again = EngineLock(tmp_path / "deep" / "engine.lock")
        again.acquire()
        again.release()

    def test_held_by_another_process(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from tachyon_tui.core.session import EngineLock\n"
            "lock = EngineLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); sys.stdin.read()"
        )
        path = tmp_path / "engine.lock"
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(SessionError, match=f"pid {holder.pid}"):
                EngineLock(path).acquire()
        finally:
            holder.kill()
            holder.communicate(timeout=30)
        lock = EngineLock(path)
        lock.acquire()
        lock.release()

    @pytest.mark.parametrize(
        ("left", "free"),
        [
            ({"pid": -1}, True),
            ({"host": "elsewhere"}, False),
            ({"host": "elsewhere", "beat": 0.0}, True),
        ],
    )
    def test_what_a_crash_left(self, tmp_path: Path, left: dict[str, Any], free: bool) -> None:
        path = tmp_path / "engine.lock"
        owner_file(path, **(left | ({"pid": dead_pid()} if "pid" in left else {})))
        lock = EngineLock(path)
        if not free:
            with pytest.raises(SessionError, match="elsewhere"):
                lock.acquire()
            return
        lock.acquire()
        owner = read_owner(path)
        assert owner is not None
        assert owner.pid == os.getpid()
        lock.release()

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
    def test_a_lock_file_that_says_nothing_is_free(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "engine.lock"
        path.write_text(content, "utf-8")
        assert read_owner(path) is None
        lock = EngineLock(path)
        lock.acquire()
        lock.release()

    def test_the_heartbeat_is_renewed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [1000.0]
        monkeypatch.setattr(time, "time", lambda: now[0])
        path = tmp_path / "engine.lock"
        lock = EngineLock(path)
        lock.acquire()
        beats = []
        for now[0] in (1005.0, 1011.0, 1030.0):
            lock.beat()
            owner = read_owner(path)
            assert owner is not None
            beats.append(owner.beat)
        lock.release()
        assert beats == [1000.0, 1011.0, 1030.0]


class TestDirectory:
    def test_create(self, tmp_path: Path) -> None:
        paths = create_session(tmp_path, "build/my app", {"a": 1})
        assert paths.folder.parent == tmp_path / ".tachyon" / "sessions"
        assert paths.id.endswith("-my-app")
        assert json.loads(paths.settings.read_text("utf-8")) == {"a": 1}
        assert all(
            p.is_dir() for p in (paths.reports, paths.patches, paths.logs, paths.builds, paths.scratch)
        )

    def test_two_in_one_second(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "strftime", lambda _format: "20260101-120000")
        first, second = (create_session(tmp_path, "app", {}) for _ in range(2))
        assert first.folder != second.folder

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / ".tachyon").write_text("in the way", "utf-8")
        with pytest.raises(SessionError, match="cannot be written") as caught:
            create_session(tmp_path, "app", {})
        assert caught.value.fix

    def test_secrets_in_settings(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MY_TOKEN", "tell-nobody-this")
        paths = create_session(tmp_path, "app", {"build_cmd": "curl -H tell-nobody-this"})
        assert "nobody" not in paths.settings.read_text("utf-8")

    def test_find(self, tmp_path: Path) -> None:
        folder = tmp_path / ".tachyon" / "sessions"
        for name in ("20260101-1-app", "20260102-1-app", "20260102-1-app2", "20260103-no-journal"):
            (folder / name).mkdir(parents=True)
            if "journal" not in name:
                write(SessionPaths(folder / name), [started()])
        assert [s.id for s in list_sessions(tmp_path)] == [
            "20260101-1-app",
            "20260102-1-app",
            "20260102-1-app2",
        ]
        assert find_session(tmp_path).id == "20260102-1-app2"
        assert find_session(tmp_path, "20260101").id == "20260101-1-app"
        assert find_session(tmp_path, "20260102-1-app").id == "20260102-1-app"
        assert find_session(tmp_path, str(folder / "20260101-1-app")).id == "20260101-1-app"
        with pytest.raises(SessionError, match="matches 2 sessions"):
            find_session(tmp_path, "20260102")
        with pytest.raises(SessionError, match="No session matches") as caught:
            find_session(tmp_path, "moon")
        assert "20260102-1-app2" in caught.value.fix

    def test_find_without_any(self, tmp_path: Path) -> None:
        with pytest.raises(SessionError, match="No session"):
            find_session(tmp_path)

    def test_root(self, tmp_path: Path) -> None:
        (tmp_path / "top" / ".git").mkdir(parents=True)
        (tmp_path / "top" / "a" / "b").mkdir(parents=True)
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / ".git").write_text("gitdir: elsewhere", "utf-8")
        assert find_root(tmp_path / "top" / "a" / "b") == (tmp_path / "top").resolve()
        assert find_root(tmp_path / "tree") == (tmp_path / "tree").resolve()
        assert find_root(tmp_path) is None
