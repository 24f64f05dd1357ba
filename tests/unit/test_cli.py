"""The command line: what it understands, what it refuses, and what it hands to the engine."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import calibrated, finished, guide_session, session, started, write

from tachyon_tui.cli import KEYS, evolve, tachyon
from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import current_language, set_language
from tachyon_tui.core.session import SessionError, SessionPaths
from tachyon_tui.core.settings import Settings


@dataclass
class Request:
    """The engine's request, with the same fields."""

    settings: Settings
    executable: str
    exe_args: tuple[str, ...]
    cwd: Path
    root: Path | None
    attended: bool = False
    interactive: bool = False
    resume: str | None = None
    verbose: bool = False


@dataclass
class FakeEngine:
    """Stands in for the engine: keeps the request, plays a journal, ends with ``code``."""

    folder: Path
    events: list[Any] = field(default_factory=guide_session)
    code: int = 0
    error: Exception | None = None
    request: Request | None = None
    paths: SessionPaths | None = None

    def start_session(self, request: Request) -> FakeEngine:
        if self.error is not None:
            raise self.error
        self.request = request
        self.paths = session(self.folder)
        return self

    def run(self) -> int:
        assert self.paths is not None
        write(self.paths, self.events)
        return self.code


@pytest.fixture(autouse=True)
def _clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    for name in [name for name in os.environ if name.startswith("TACHYON_")]:
        monkeypatch.delenv(name)
    yield
    set_language("en")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def engine(project: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine(project)
    module = types.ModuleType("fake_start")
    vars(module).update(Request=Request, start_session=fake.start_session)
    monkeypatch.setitem(sys.modules, "tachyon_tui.engine.start", module)
    return fake


def run(*words: str) -> Result:
    return CliRunner().invoke(tachyon, words, catch_exceptions=False)


def requested(engine: FakeEngine, *words: str) -> Request:
    result = run("evolve", *words)
    assert result.exit_code == 0, result.output
    assert engine.request is not None
    return engine.request


class TestWords:
    @pytest.mark.parametrize(
        ("words", "executable", "exe_args"),
        [
            (["./app"], "./app", ()),
            (["./app", "10", "20", "-q"], "./app", ("10", "20")),
            (["-q", "./app", "10", "--build", "make", "20"], "./app", ("10", "20")),
            (["./app", "--build", "make -j8", "--", "./app", "arg1", "arg2"], "./app", ("arg1", "arg2")),
            (["./app", "--", "--size", "10", "-q", "--json"], "./app", ("--size", "10", "-q", "--json")),
            (["./app", "--", "--", "x"], "./app", ("--", "x")),
            (["./app", "1", "--", "./other", "2"], "./app", ("1", "./other", "2")),
            (["./app", "--", "./app", "./app"], "./app", ("./app",)),
            (["--build", "make", "--", "./app", "-n", "3"], "./app", ("-n", "3")),
            (["./app", "-"], "./app", ("-",)),
            (["./app", "--ncu-args", "--nvtx"], "./app", ()),
        ],
    )
    def test_what_goes_to_the_program(
        self, engine: FakeEngine, words: list[str], executable: str, exe_args: tuple[str, ...]
    ) -> None:
        request = requested(engine, *words)
        assert (request.executable, request.exe_args) == (executable, exe_args)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (
                ["./app", "--size", "10"],
                "--size is no option of tachyon. Options of your program go after --",
            ),
            (["./app", "--max-iteration", "3"], "Did you mean --max-iterations?"),
            (["./app", "-5"], "-5 is no option"),
            (["./app", "-qx"], "-x is no option"),
            (["./app", "--run", "./app 1", "2"], "--run holds the whole command"),
            (["./app", "--run", "./app 1", "--", "2"], "--run holds the whole command"),
            (["./app", "--quiet", "--json"], "exclude each other"),
            (["./app", "--plain", "-q"], "exclude each other"),
            (["./app", "-i"], "--interactive needs a terminal"),
            (["./app", "--ncu-args", "--set basic"], "--set"),
            (["./app", "--ncu-args", "'"], "cannot be split"),
            (["./app", "--max-iterations", "0"], "--max-iterations"),
            (["./app", "--timeout", "-1"], "--timeout"),
            (["./app", "--ncu-set", "everything"], "--ncu-set"),
            (["./app", "--lang", "fr"], "--lang"),
            (["./app", "--report", "nowhere.ncu-rep"], "nowhere.ncu-rep"),
            (["./app", "--build"], "--build"),
            ([], "Name the program"),
            (["--build", "make", "--"], "Name the program"),
        ],
    )
    def test_what_is_refused(self, engine: FakeEngine, words: list[str], said: str) -> None:
        result = run("evolve", *words)
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())
        assert result.stdout == ""
        assert engine.request is None

    @pytest.mark.parametrize(
        ("words", "resume", "executable"),
        [
            (["./app"], None, "./app"),
            (["--resume"], "", ""),
            (["--resume", "-q"], "", ""),
            (["--resume", "20260101"], "20260101", ""),
            (["--resume", "program"], "", "program"),
            (["--resume=20260101", "program"], "20260101", "program"),
            (["program", "--resume", "20260101"], "20260101", "program"),
            (["program", "--resume"], "", "program"),
        ],
    )
    def test_resume(
        self, engine: FakeEngine, project: Path, words: list[str], resume: str | None, executable: str
    ) -> None:
        (project / "program").touch()
        request = requested(engine, *words)
        assert (request.resume, request.executable) == (resume, executable)


class TestSettings:
    @pytest.mark.parametrize(
        ("words", "key", "value"),
        [
            (["--build", "make -j8"], "build_cmd", "make -j8"),
            (["--run", "./run.sh"], "run_cmd", "./run.sh"),
            (["--max-iterations", "3"], "max_iterations", 3),
            (["--kernel", "k<int>"], "target_kernel", "k<int>"),
            (["-k", "k"], "target_kernel", "k"),
            (["-m", "m"], "llm.model", "m"),
            (["--model", "m"], "llm.model", "m"),
            (["-p", "anthropic"], "llm.provider", "anthropic"),
            (["--api-base", "http://x"], "llm.api_base", "http://x"),
            (["--max-cost", "1.5"], "llm.max_cost", 1.5),
            (["--max-tokens", "1000"], "llm.max_tokens", 1000),
            (["--lang", "zh"], "lang", "zh"),
            (["--profiler", "stopwatch"], "profiler", "stopwatch"),
            (["--ncu-set", "basic"], "ncu.set", "basic"),
            (["--ncu-metrics", "a, b,"], "ncu.metrics", ("a", "b")),
            (["--ncu-args", "--nvtx"], "ncu.args", "--nvtx"),
            (["--timeout", "60"], "timeout", 60.0),
            (["--branch", "faster"], "git.branch", "faster"),
            (["--ascii"], "ui.ascii", True),
        ],
    )
    def test_each_option_beats_the_file_and_only_its_own_key(
        self, engine: FakeEngine, project: Path, words: list[str], key: str, value: object
    ) -> None:
        (project / ".tachyon").mkdir()
        (project / ".tachyon" / "evolve.toml").write_text(
            'build_cmd = "file"\nmax_iterations = 7\ntimeout = 5\n[llm]\nmodel = "file"\n[ncu]\nset = "detailed"\n',
            "utf-8",
        )
        default = requested(engine, "./app").settings.model_dump()
        assert (default["build_cmd"], default["max_iterations"], default["timeout"]) == ("file", 7, 5)
        changed = {"a": requested_again(engine, "./app", *words).settings.model_dump()}
        *tables, leaf = key.split(".")
        target = default
        for table in tables:
            target = target[table]
        target[leaf] = value
        assert changed["a"] == default

    def test_every_option_of_a_setting_is_known_to_the_settings(self) -> None:
        names = {parameter.name for parameter in evolve.params}
        assert set(KEYS) <= names

    def test_files_are_meant_from_here_and_commands_run_here(
        self, engine: FakeEngine, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(project / "sub")
        (project / "sub" / "old.ncu-rep").touch()
        request = requested(engine, "./app", "--report", "old.ncu-rep", "--export", "out.md")
        assert (request.cwd, request.root) == (project / "sub", project)
        assert request.settings.report == str(project / "sub" / "old.ncu-rep")
        assert (project / "sub" / "out.md").is_file()

    def test_arguments_beat_the_run_command_of_the_file(self, engine: FakeEngine, project: Path) -> None:
        (project / ".tachyon").mkdir()
        (project / ".tachyon" / "evolve.toml").write_text('run_cmd = "./app 1"\n', "utf-8")
        assert requested(engine, "./app").settings.run_cmd == "./app 1"
        assert requested_again(engine, "./app", "2").settings.run_cmd == ""

    def test_a_named_config(self, engine: FakeEngine, project: Path) -> None:
        (project / "other.toml").write_text("max_iterations = 2\n", "utf-8")
        assert requested(engine, "./app", "--config", "other.toml").settings.max_iterations == 2
        result = run("evolve", "./app", "--config", "nowhere.toml")
        assert result.exit_code == 2
        assert "nowhere.toml does not exist" in result.stderr

    def test_a_wrong_file_is_a_usage_error(self, engine: FakeEngine, project: Path) -> None:
        (project / ".tachyon").mkdir()
        (project / ".tachyon" / "evolve.toml").write_text("max_iteration = 2\n", "utf-8")
        result = run("evolve", "./app")
        assert result.exit_code == 2
        assert "evolve.toml:1: max_iteration: unknown key, did you mean `max_iterations`?" in result.stderr
        assert engine.request is None

    def test_outside_of_a_repository(
        self, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bare").mkdir()
        monkeypatch.chdir(tmp_path / "bare")
        assert requested(engine, "./app").root is None

    @pytest.mark.parametrize(
        ("words", "locale", "language"),
        [([], "C.UTF-8", "en"), ([], "zh_CN.UTF-8", "zh"), (["--lang", "en"], "zh_CN.UTF-8", "en")],
    )
    def test_language(
        self,
        engine: FakeEngine,
        monkeypatch: pytest.MonkeyPatch,
        words: list[str],
        locale: str,
        language: str,
    ) -> None:
        monkeypatch.setenv("LC_ALL", locale)
        result = run("evolve", "./app", *words)
        assert current_language() == language
        assert ("优化完成" in result.stdout) == (language == "zh")


def requested_again(engine: FakeEngine, *words: str) -> Request:
    """As `requested`, in a fresh session directory."""
    engine.folder = engine.folder / "again"
    return requested(engine, *words)


class TestRun:
    @pytest.mark.parametrize("code", [0, 1, 3, 130])
    def test_the_exit_code_is_the_sessions(self, engine: FakeEngine, code: int) -> None:
        engine.code = code
        assert run("evolve", "./app").exit_code == code

    def test_plain(self, engine: FakeEngine) -> None:
        result = run("evolve", "./app")
        assert "#1 ✓ SUCCESS  Accepted: GPU time -97.8%" in result.stdout
        assert result.stdout.endswith("Success: 3, Failed: 7\n")
        assert "Baseline" in result.stderr

    def test_quiet(self, engine: FakeEngine) -> None:
        result = run("evolve", "./app", "-q")
        assert len(result.stdout.splitlines()) == 2
        assert result.stderr == ""

    def test_json(self, engine: FakeEngine) -> None:
        result = run("evolve", "./app", "--json")
        assert [json.loads(line)["type"] for line in result.stdout.splitlines()] == [
            event.type for event in guide_session()
        ]

    def test_verbose_and_ascii(self, engine: FakeEngine) -> None:
        engine.events = [started(), e.Notice(level="debug", message="details"), *guide_session()[1:]]
        result = run("evolve", "./app", "-v", "--ascii")
        assert engine.request is not None
        assert engine.request.verbose
        assert "details" in result.stderr
        assert result.stdout.isascii()

    def test_a_session_that_cannot_start(self, engine: FakeEngine) -> None:
        engine.error = SessionError("Another engine works here.", "Watch it with `tachyon attach`.")
        result = run("evolve", "./app")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "Another engine works here.\n  Fix: Watch it with `tachyon attach`.\n"

    def test_an_error_with_its_own_exit_code(self, engine: FakeEngine) -> None:
        engine.error = SessionError("The price is unknown.", "Leave --max-cost out.", exit_code=2)
        assert run("evolve", "./app").exit_code == 2

    def test_export(self, engine: FakeEngine, project: Path) -> None:
        assert run("evolve", "./app", "--export", "out.md").exit_code == 0
        assert "Optimisation finished" in (project / "out.md").read_text("utf-8")

    @pytest.mark.parametrize(("code", "exit_code"), [(0, 1), (3, 1), (130, 1)])
    def test_an_export_that_cannot_be_written(self, engine: FakeEngine, code: int, exit_code: int) -> None:
        engine.code = code
        result = run("evolve", "./app", "--export", "nowhere/out.md")
        assert result.exit_code == (exit_code if code == 0 else code)
        assert "tachyon export 20260101-120000-app -o FILE" in result.stderr
        assert "Success: 3" in result.stdout

    def test_no_export_after_a_failed_preflight(self, engine: FakeEngine, project: Path) -> None:
        engine.code, engine.events = 2, [started(), finished(exit_code=2, base_ms=None)]
        assert run("evolve", "./app", "--export", "out.md").exit_code == 2
        assert not (project / "out.md").exists()

    def test_what_is_reported_is_reported_when_the_engine_breaks(
        self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken() -> int:
            assert engine.paths is not None
            write(engine.paths, [started(), calibrated()])
            raise SessionError("The journal cannot be written: disk full.", "Free some.")

        monkeypatch.setattr(engine, "run", broken)
        result = run("evolve", "./app")
        assert result.exit_code == 1
        assert "Baseline" in result.stderr
        assert result.stderr.endswith("disk full.\n  Fix: Free some.\n")

    def test_interactive_in_a_terminal(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal:
            """Claims to be a terminal."""

            def isatty(self) -> bool:
                return True

        monkeypatch.setattr(
            "tachyon_tui.cli.sys", types.SimpleNamespace(stdin=Terminal(), stdout=Terminal(), stderr=None)
        )
        monkeypatch.setattr("tachyon_tui.cli._reporter", lambda *_given: Silent())
        request = requested(engine, "./app", "-i")
        assert (request.attended, request.interactive) == (True, True)


class Silent:
    """A reporter that says nothing."""

    def event(self, event: Any, view: Any) -> None: ...

    def failed(self, error: SessionError) -> None: ...
