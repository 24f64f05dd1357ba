"""The commands beside `evolve`: reports, sessions, and speaking to a running one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import finished, guide_session, hold, session, started, write

from tachyon_tui.cli import tachyon
from tachyon_tui.core import events as e
from tachyon_tui.core.commands import Pause
from tachyon_tui.core.session import CommandReader, Journal, SessionPaths
from tachyon_tui.frontends import remote


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(tachyon, words, catch_exceptions=False)


class TestReport:
    def test_text_and_filter(self, reports: Path) -> None:
        file = str(reports / "transpose-time-only-6-launches.ncu-rep")
        whole = run("report", file)
        assert whole.exit_code == 0
        assert "scale_inplace" in whole.stdout
        part = run("report", file, "-k", "transpose_naive(const float")
        assert "scale_inplace" not in part.stdout
        assert "transpose_naive" in part.stdout
        nothing = run("report", file, "-k", ".*")
        assert nothing.exit_code == 1
        assert "There are: scale_inplace, transpose_naive." in nothing.stderr

    def test_json(self, reports: Path) -> None:
        result = run("report", str(reports / "matmul-naive.ncu-rep"), "--json")
        assert json.loads(result.stdout)["kernels"][0]["function"] == "matmul_kernel"

    @pytest.mark.parametrize("content", [None, b"", b"rubbish"])
    def test_no_report(self, tmp_path: Path, content: bytes | None) -> None:
        file = tmp_path / "x.ncu-rep"
        if content is not None:
            file.write_bytes(content)
        result = run("report", str(file))
        assert result.exit_code == 1
        assert result.stdout == ""
        assert "Fix: " in result.stderr


class TestSessions:
    def test_none(self, project: Path) -> None:
        result = run("sessions")
        assert result.exit_code == 1
        assert "tachyon evolve ./app" in result.stderr

    @pytest.mark.parametrize(
        ("tail", "state", "gain"),
        [
            ([finished()], "improved", "+98.0%"),
            ([finished(exit_code=3, gain_percent=None)], "no improvement", "+98.0%"),
            ([finished(exit_code=130)], "interrupted", "+98.0%"),
            ([finished(exit_code=1)], "error", "+98.0%"),
            ([], "broken off", "+98.0%"),
        ],
    )
    def test_table(self, project: Path, tail: list[Any], state: str, gain: str) -> None:
        usage = e.Usage(prompt_tokens=1, completion_tokens=1, total_tokens=2, total_usd=0.5)
        paths = session(project, [*guide_session()[:-2], usage, *tail])
        with paths.journal.open("ab") as file:
            file.write(b'{"seq":99,"type":"agent_text","rubbish":1}\n')
        [head, row] = run("sessions").stdout.splitlines()
        assert head.split() == ["SESSION", "STATE", "ROUNDS", "GAIN", "COST", "AGE"]
        assert row.startswith(f"20260101-120000-app  {state}")
        assert row[len("20260101-120000-app  " + state) :].split()[:3] == ["7", gain, "$0.5000"]

    def test_running_and_paused(self, project: Path) -> None:
        paths = session(project, [started()])
        lock = hold(paths)
        assert "running" in run("sessions").stdout
        write(paths, [e.ControlChanged(running="paused", review=False)], last_seq=1)
        assert "paused" in run("sessions").stdout
        lock.release()

    def test_damaged(self, project: Path) -> None:
        session(project).journal.write_bytes(b"rubbish\n")
        assert "damaged" in run("sessions").stdout


class TestExportCommand:
    def test_stdout_and_file(self, project: Path) -> None:
        session(project, guide_session())
        shown = run("export")
        assert shown.stdout.startswith("# Tachyon evolve: ./app\n")
        assert run("export", "20260101", "-o", "x.md").exit_code == 0
        assert (project / "x.md").read_text("utf-8") == shown.stdout

    def test_no_such_session(self, project: Path) -> None:
        result = run("export", "moon")
        assert result.exit_code == 1
        assert "No session matches 'moon'" in result.stderr

    def test_no_such_folder(self, project: Path) -> None:
        session(project, guide_session())
        assert run("export", "-o", "nowhere/x.md").exit_code == 1


class TestAttach:
    def test_a_finished_session(self, project: Path) -> None:
        session(project, [*guide_session()[:-1], finished(exit_code=3)])
        result = run("attach")
        assert result.exit_code == 3
        assert result.stdout.endswith("Success: 3, Failed: 7\n")

    def test_a_session_that_was_broken_off(self, project: Path) -> None:
        session(project, [started()])
        result = run("attach")
        assert result.exit_code == 1
        assert "The session was broken off." in result.stderr
        assert "tachyon export 20260101-120000-app" in result.stderr

    def test_follows_to_the_end(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = session(project, [started()])
        lock = hold(paths)
        monkeypatch.setattr("tachyon_tui.frontends.sessions.running", end_after_looks(paths, 2))
        result = run("attach")
        lock.release()
        assert result.exit_code == 0
        assert "优化" not in result.stdout
        assert "Optimisation finished" in result.stdout

    def test_ctrl_c_only_detaches(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = session(project, [started()])
        lock = hold(paths)

        def interrupt(_paths: SessionPaths) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr("tachyon_tui.frontends.sessions.running", interrupt)
        result = run("attach")
        assert result.exit_code == 0
        assert "Detached; the session goes on." in result.stderr
        assert list(CommandReader(paths).commands()) == []
        lock.release()


def end_after_looks(paths: SessionPaths, looks: int) -> Any:
    """A fake look at the engine, which writes its end at one of the looks."""
    seen: list[int] = []

    def running(_paths: SessionPaths) -> bool:
        seen.append(1)
        if len(seen) == looks:
            write(paths, guide_session()[1:], last_seq=1)
        return True

    return running


@pytest.fixture
def answering(project: Path) -> Iterator[dict[str, Any]]:
    """A fake engine that answers commands from a thread; ``ok`` and ``message`` are what it answers."""
    paths = session(project, [started()])
    lock = hold(paths)
    state: dict[str, Any] = {"ok": True, "message": "", "commands": [], "paths": paths}
    stop = threading.Event()

    def work() -> None:
        reader, journal = CommandReader(paths), Journal(paths, 1)
        while not stop.is_set():
            found: list[Any] = list(reader.commands())
            for command in found:
                state["commands"].append(command)
                hint = e.HintChanged(hint=command.id, text="x", status="queued")
                answer = e.CommandAnswered(
                    command=command.id, kind=command.type, ok=state["ok"], message=state["message"]
                )
                journal.append(hint)
                journal.append(answer.model_copy(update={"command": "another"}))
                journal.append(answer)
            stop.wait(0.01)
        journal.close()

    thread = threading.Thread(target=work)
    thread.start()
    yield state
    stop.set()
    thread.join(30)
    lock.release()


class TestCommands:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["steer", "use", "smem[tid]"], {"type": "steer", "text": "use smem[tid]"}),
            (["steer", "two\x1b[31m\nlines"], {"type": "steer", "text": "two\nlines"}),
            (["pause"], {"type": "pause"}),
            (["continue"], {"type": "continue"}),
            (["step"], {"type": "step"}),
            (["skip"], {"type": "skip"}),
            (["stop"], {"type": "stop", "after_round": False}),
            (["stop", "--after-round"], {"type": "stop", "after_round": True}),
            (["review", "on"], {"type": "review", "on": True}),
            (["review", "off"], {"type": "review", "on": False}),
            (["accept"], {"type": "accept", "candidate": ""}),
            (["accept", "--candidate", "3-1"], {"type": "accept", "candidate": "3-1"}),
            (["revert"], {"type": "revert", "candidate": "", "round": None, "confirmed": False}),
            (["revert", "2", "--yes"], {"type": "revert", "candidate": "", "round": 2, "confirmed": True}),
            (["pause", "--session", "20260101"], {"type": "pause"}),
        ],
    )
    def test_the_engine_gets_it_and_answers(
        self, answering: dict[str, Any], words: list[str], expected: dict[str, Any]
    ) -> None:
        answering["message"] = "As you wish."
        result = run(*words)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "As you wish.\n", "")
        [command] = answering["commands"]
        assert command.model_dump(exclude={"id", "time"}) == expected

    def test_refused(self, answering: dict[str, Any]) -> None:
        answering |= {"ok": False, "message": "Nothing waits.\x1b[2J"}
        result = run("accept")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", "Nothing waits.\n")

    @pytest.mark.parametrize(("ok", "said"), [(True, "Done.\n"), (False, "Refused.\n")])
    def test_an_answer_without_words(self, answering: dict[str, Any], ok: bool, said: str) -> None:
        answering["ok"] = ok
        assert run("pause").output == said

    @pytest.mark.parametrize("words", [["steer"], ["steer", " "], ["steer", "x" * 8001], ["review", "maybe"]])
    def test_usage(self, project: Path, words: list[str]) -> None:
        assert run(*words).exit_code == 2

    @pytest.mark.parametrize("words", [["pause"], ["pause", "--session", "20260101"]])
    def test_no_engine(self, project: Path, words: list[str]) -> None:
        paths = session(project, [started()])
        result = run(*words)
        assert result.exit_code == 1
        assert "No engine is running" in result.stderr
        assert paths.commands.read_bytes() == b""

    def test_the_running_one_is_meant_not_the_latest(self, answering: dict[str, Any], project: Path) -> None:
        later = SessionPaths(project / ".tachyon" / "sessions" / "20270101-000000-app")
        later.folder.mkdir()
        write(later, [started()])
        assert run("pause").exit_code == 0
        assert len(answering["commands"]) == 1

    def test_a_busy_engine(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = session(project, [started()])
        lock = hold(paths)
        answer = remote.send(paths, Pause(), seconds=0.0)
        lock.release()
        assert answer.ok
        assert "busy" in answer.message

    def test_an_engine_that_ends(self, project: Path) -> None:
        paths = session(project, [started()])
        answer = remote.send(paths, Pause(), seconds=30.0)
        assert not answer.ok
        assert "ended before" in answer.message


def child(code: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which can import the package."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


MAIN = "import sys; from tachyon_tui.cli import main\ntry:\n    main()\nfinally:\n    "


@pytest.mark.parametrize("words", [["--help"], ["evolve", "--help"], ["steer", "--help"], ["--version"]])
def test_help_is_quick(words: list[str]) -> None:
    heavy = "print([m for m in ('pydantic', 'litellm', 'textual', 'rich', 'git') if m in sys.modules])"
    cpu = "import resource; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
    done = child(MAIN + heavy + "; " + cpu, *words)
    *_help, modules, seconds = done.stdout.splitlines()
    assert modules == "[]"
    assert float(seconds) < 0.3


def test_a_report_needs_neither_model_nor_screen(reports: Path) -> None:
    heavy = "print([m for m in ('litellm', 'textual', 'openai') if m in sys.modules])"
    done = child(MAIN + heavy, "report", str(reports / "matmul-naive.ncu-rep"))
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_in_chinese() -> None:
    done = child(
        "import os; os.environ['LC_ALL'] = 'zh_CN.UTF-8'; from tachyon_tui.cli import main; main()",
        "evolve",
        "--help",
    )
    assert done.returncode == 0
    assert "构建命令" in done.stdout


def test_a_reader_that_goes_away(reports: Path) -> None:
    """As in `tachyon report x.ncu-rep | head -0`."""
    read, write_end = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        done = subprocess.run(
            [sys.executable, "-c", MAIN + "pass", "report", str(reports / "matmul-naive.ncu-rep")],
            env=environment,
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 0


EVOLVE = """
import sys, types
sys.path.insert(0, sys.argv.pop(1))
from support import calibrated, guide_session, session, started, write
from pathlib import Path
import tachyon_tui.cli as cli

class Session:
    paths = session(Path.cwd())
    def run(self):
        write(self.paths, [started(), *[calibrated()] * int(sys.argv.pop()), *guide_session()[2:]])
        print("engine done", file=sys.stderr, flush=True)
        return 3

fake = types.ModuleType("fake_start")
fake.Request, fake.start_session = dict, lambda request: Session()
sys.modules["tachyon_tui.engine.start"] = fake
cli.FINISH_SECONDS = 0.2
cli.main()
"""
"""`tachyon evolve` over a fake engine that writes as many events as the last argument says."""


@pytest.mark.parametrize(("reader", "events"), [("gone", 1), ("asleep", 1000)])
def test_the_engine_ends_whatever_becomes_of_the_reader(project: Path, reader: str, events: int) -> None:
    read, write_end = os.pipe()
    if reader == "gone":
        os.close(read)
    tests = Path(__file__).parents[1]
    try:
        done = subprocess.run(
            [sys.executable, "-c", EVOLVE, str(tests), "evolve", "./app", "--json", "--", str(events)],
            env={**os.environ, "PYTHONPATH": str(tests.parent)},
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(write_end)
        if reader == "asleep":
            os.close(read)
    assert done.stderr == b"engine done\n"
    assert done.returncode == 3
