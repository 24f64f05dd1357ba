"""Whole sessions in a laboratory: real repository, builds and runs; the fakes of tests/doubles at the edges."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tachyon_tui.core import events as e
from tachyon_tui.core.session import (
    JournalReader,
    SessionPaths,
    append_command,
    find_session,
    list_sessions,
)
from tachyon_tui.core.settings import load_settings
from tachyon_tui.core.view import SessionView, fold_all
from tachyon_tui.engine.start import Request, start_session
from tests.doubles.model_server import ModelServer

TESTS = Path(__file__).resolve().parents[1]
PROJECTS = TESTS / "projects"
FAKE_NCU = TESTS / "doubles" / "fake_ncu.py"
KEY = "sk-test-0123456789abcdef"
BUILD = {"name": "compile_kernel", "arguments": {}}
RUN = {"name": "run_benchmark", "arguments": {}}
PROFILE = {"name": "reprofile", "arguments": {}}
COMPARE = {"name": "compare_metrics", "arguments": {}}
STATUS = {"name": "get_evolve_status", "arguments": {}}
SUMMARY = {"name": "get_kernel_summary", "arguments": {}}
GIT_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.invalid",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.invalid",
}

# Pieces of tests/projects/fake_gpu/reduce.cu.
BODY = """    const size_t i = blockIdx.x;
    const int row = static_cast<int>(i / cols);
    atomicAdd(&out[row], in[i]);
"""
GRID = "    const dim3 grid(static_cast<unsigned>(static_cast<size_t>(rows) * cols));\n"
ROW_GRID = "    const dim3 grid(static_cast<unsigned>(rows));\n"
ROW_BODY = """    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) sum += in[static_cast<size_t>(blockIdx.x) * cols + c];
    out[blockIdx.x] = sum;
"""


def edit(old: str, new: str, path: str = "reduce.cu") -> dict[str, Any]:
    """One edit_source_file call."""
    return {"name": "edit_source_file", "arguments": {"path": path, "old_text": old, "new_text": new}}


def body(new: str, old: str = BODY) -> dict[str, Any]:
    """Replace the kernel's body."""
    return edit(old, new)


FASTER = [body(ROW_BODY), edit(GRID, ROW_GRID)]
"""One thread a row without atomics: about thirty times faster on the fake GPU."""
SLOWER = [body(BODY.replace("atomicAdd", "atomicAdd(&out[row], 0.0f);\n    atomicAdd"))]
SLOWER_ROWS = [body(ROW_BODY + "    fake_gpu::cost += 5000;\n", ROW_BODY)]
"""After `FASTER`."""
NO_EFFECT = [edit("// The slow baseline", "// The baseline")]
WRONG = [body(BODY.replace("in[i]", "in[i] * 2"))]
CRASH = [body(BODY + "    abort();\n")]
BROKEN = [body(BODY.replace("in[i]);", "in[i])"))]
COST = "    fake_gpu::cost += {cost};\n"


def slightly(ticks: int) -> list[dict[str, Any]]:
    """Cheaper by so many ns for each of the 8192 atomics."""
    return [body(BODY + f"    fake_gpu::cost -= {ticks};\n")]


def turn(edits: Sequence[dict[str, Any]], text: str = "tried something", **more: Any) -> list[dict[str, Any]]:
    """A round in which the agent edits, builds, runs and asks for the verdict."""
    return [{"text": "A plan.", "calls": [*edits, BUILD], **more}, {"calls": [RUN, PROFILE]}, {"text": text}]


@dataclass
class Result:
    """What is left after a session."""

    code: int
    paths: SessionPaths
    events: list[Any]
    server: ModelServer | None
    stdout: str = ""
    stderr: str = ""
    view: SessionView = field(default_factory=SessionView)

    def of(self, kind: type) -> list[Any]:
        """All events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def states(self) -> list[str]:
        """Final states of the rounds."""
        return [str(event.state) for event in self.of(e.RoundFinished)]

    @property
    def reasons(self) -> list[str]:
        """Reasons of the rounds."""
        return [event.reason for event in self.of(e.RoundFinished)]

    @property
    def path(self) -> list[str]:
        """All states of all rounds, in order."""
        return [str(event.after) for event in self.of(e.StateChanged)]

    @property
    def finished(self) -> e.SessionFinished:
        """The last event."""
        last = self.events[-1]
        assert isinstance(last, e.SessionFinished)
        return last

    @property
    def told(self) -> str:
        """Everything the model was sent."""
        assert self.server is not None
        return "\n".join(self.server.told())


class Lab:
    """One project in one repository."""

    def __init__(self, folder: Path, project: str = "fake_gpu", *, real_gpu: bool = False) -> None:
        self.root = folder / Path(project).name
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        shutil.copytree(PROJECTS / project, self.root)
        self.project = project
        self.env = {
            **GIT_ENV,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "OPENAI_API_KEY": KEY,
            "LC_ALL": "C.UTF-8",
        }
        if not real_gpu:
            self.env |= {
                "NCU": str(FAKE_NCU),
                "FAKE_NCU": "ok",
                "FAKE_NCU_REPORT": "cu_reduce-baseline",
                "TACHYON_RECORDER": str(FAKE_NCU),
            }
        self.config: list[str] = ['build_cmd = "make"']
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "start")
        self.at_request: dict[int, list[Any]] = {}
        self.watchers: list[tuple[Callable[[Any], bool], Callable[[SessionPaths], None]]] = []

    def git(self, *args: str) -> str:
        """Run git in the project; its output."""
        done = subprocess.run(
            ["git", *args],
            cwd=self.root,
            env={**os.environ, **GIT_ENV},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def subjects(self) -> list[str]:
        """Subjects of all commits, newest first."""
        return self.git("log", "--format=%s").splitlines()

    def status(self) -> str:
        """`git status --porcelain`."""
        return self.git("status", "--porcelain")

    def when(self, seen: Callable[[Any], bool], *commands: Any) -> None:
        """Append the commands once an event of that kind is in the journal."""

        def act(paths: SessionPaths) -> None:
            for command in commands:
                append_command(paths, command)

        self.watchers.append((seen, act))

    def do_when(self, seen: Callable[[Any], bool], act: Callable[[SessionPaths], None]) -> None:
        """Call ``act`` once an event of that kind is in the journal."""
        self.watchers.append((seen, act))

    def at(self, request: int, *commands: Any) -> None:
        """Append the commands when the model is asked for the so-manieth time (from 0), before it answers."""
        self.at_request.setdefault(request, []).extend(commands)

    def write_config(self) -> None:
        folder = self.root / ".tachyon"
        folder.mkdir(exist_ok=True)
        (folder / "evolve.toml").write_text("\n".join(self.config) + "\n", "utf-8")

    def run(
        self,
        monkeypatch: Any,
        scenario: Sequence[Any],
        *,
        attended: bool = False,
        interactive: bool = False,
        **options: Any,
    ) -> Result:
        """Play a session in this process; ``options`` are dotted settings with ``__`` for the dot."""
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)
        self.write_config()
        given = {key.replace("__", "."): value for key, value in options.items()}
        with ModelServer(list(scenario), base=TESTS / "scenarios") as server:
            defaults = {
                "llm.provider": "openai",
                "llm.model": "fake-model",
                "llm.api_base": server.base_url,
                "llm.retries": 1,
            }
            settings = load_settings(self.root, options={**defaults, **given})
            request = Request(
                settings, "./app", (), self.root, self.root, attended=attended, interactive=interactive
            )
            session = start_session(request)

            def act(number: int) -> None:
                for command in self.at_request.get(number, []):
                    command(session.paths) if callable(command) else append_command(session.paths, command)

            server.on_request = act
            with self._watch(session.paths):
                code = session.run()
        return self.result(code, session.paths, server)

    def _watch(self, paths: SessionPaths) -> _Watch:
        return _Watch(paths, self.watchers)

    def cli(
        self,
        *args: str,
        scenario: Sequence[Any] | Path | None = None,
        cwd: Path | None = None,
        timeout: float = 100,
        env: Mapping[str, str] | None = None,
        record: Path | None = None,
        on_request: Callable[[int], None] = lambda _number: None,
    ) -> Result:
        """Run `tachyon` as its own process; with a scenario it talks to a model server."""
        self.write_config()
        environment = {**os.environ, **self.env, **(env or {})}
        played = scenario if isinstance(scenario, Path) else list(scenario or [])
        with ModelServer(played, base=TESTS / "scenarios", record=record) as server:
            server.on_request = on_request
            if scenario is not None:
                environment |= {
                    "TACHYON_PROVIDER": "openai",
                    "TACHYON_MODEL": "fake-model",
                    "TACHYON_API_BASE": server.base_url,
                }
            done = subprocess.run(
                [sys.executable, "-m", "tachyon_tui", *args],
                cwd=cwd or self.root, env=environment, capture_output=True, text=True, timeout=timeout,
            )  # fmt: skip
        sessions = list_sessions(self.root)
        if not sessions:
            return Result(done.returncode, SessionPaths(self.root), [], server, done.stdout, done.stderr)
        result = self.result(done.returncode, find_session(self.root), server)
        result.stdout, result.stderr = done.stdout, done.stderr
        return result

    def result(self, code: int, paths: SessionPaths, server: ModelServer | None) -> Result:
        events = list(JournalReader(paths).events())
        return Result(code, paths, events, server, view=fold_all(events))


class _Watch:
    """Follows the journal in a thread and acts on events, as a person at another shell would."""

    def __init__(self, paths: SessionPaths, watchers: list[Any]) -> None:
        self._paths = paths
        self._left = list(watchers)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._done.set()
        self._thread.join(10)

    def _follow(self) -> None:
        reader = JournalReader(self._paths)
        while self._left and not self._done.wait(0.01):
            for event in reader.events():
                for item in [w for w in self._left if w[0](event)]:
                    self._left.remove(item)
                    item[1](self._paths)
