"""A laboratory whose compiler and program are shell scripts: a whole session takes a fraction of a second."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tachyon_tui.core.view import SessionView, fold
from tachyon_tui.frontends.plain import PlainReporter
from tests.engine.lab import BUILD, PROFILE, RUN, Lab, Result, edit

NO_NCU = 'ncu.path = "/nowhere/ncu"'
DEADLINE = 20.0


def costs(cost: int, before: int = 1000) -> dict[str, Any]:
    """The edit that makes the kernel take so many us."""
    return edit(f"cost = {before};", f"cost = {cost};")


def try_cost(cost: int, before: int = 1000) -> list[dict[str, Any]]:
    """A round that edits, builds, runs and asks for the verdict."""
    return [{"calls": [costs(cost, before), BUILD]}, {"calls": [RUN, PROFILE]}, {"text": f"costs {cost} now"}]


class ScriptLab(Lab):
    """The project tests/projects/script_gpu; files in ``state`` direct its scripts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "script_gpu")
        self.state = folder / "state"
        self.state.mkdir()
        self.env["STATE"] = str(self.state)
        self.config = ['build_cmd = "./build.sh"', NO_NCU]

    def with_ncu(self, behaviour: str = "ok") -> None:
        """Let the session find the fake ncu."""
        self.config.remove(NO_NCU)
        self.env["FAKE_NCU"] = behaviour

    def says(self, script: str) -> None:
        """What the program prints, and how it ends, as shell commands."""
        (self.state / "says").write_text(script, "utf-8")

    def commit(self, path: str, text: str) -> None:
        """Write a file and commit it."""
        (self.root / path).write_text(text, "utf-8")
        self.git("add", path)
        self.git("commit", "-q", "-m", f"change {path}")

    def shell(self, command: str) -> None:
        """Run a command in the project, as its user would."""
        subprocess.run(command, shell=True, cwd=self.root, env={**os.environ, **self.env}, check=True)

    def git_may_fail(self, *args: str) -> None:
        """Run git where a conflict is meant."""
        subprocess.run(["git", *args], cwd=self.root, env={**os.environ, **self.env}, capture_output=True)

    def picture(self) -> tuple[str, ...]:
        """All that git knows of the user's tree, with the content of the tracked files."""
        head = (self.root / ".git" / "HEAD").read_text("utf-8")
        files = self.git("ls-files").splitlines()
        content = [f"{n}: {(self.root / n).read_bytes()!r}" for n in files if (self.root / n).is_file()]
        return (head, self.git("for-each-ref"), self.git("ls-files", "--stage"), self.status(), *content)

    def children(self) -> list[str]:
        """Command lines of the processes that run in the project, or for one of its sessions."""
        found = []
        mine = os.fsencode(self.root)
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            try:
                line = (process / "cmdline").read_bytes()
                if mine in line or (process / "cwd").readlink().is_relative_to(self.root):
                    found.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:
                continue
        return found

    def unchanged(
        self, monkeypatch: Any, scenario: Sequence[Any] = (), *, code: int = 2, **options: Any
    ) -> Result:
        """Play a session that leaves the user's tree as it was and no process behind; what it printed is in the
        result."""
        self.write_config()
        before = self.picture()
        result = self.run(monkeypatch, scenario, **options)
        result.stdout, result.stderr = printed(result.events)
        assert result.code == code, result.stderr
        assert self.picture() == before
        assert self.children() == []
        assert "Traceback" not in result.stderr
        return result

    def refused(
        self,
        monkeypatch: Any,
        says: str,
        fix: str,
        scenario: Sequence[Any] = (),
        *,
        code: int = 2,
        **options: Any,
    ) -> Result:
        """`unchanged`, for a session that ends with one message and its fix."""
        result = self.unchanged(monkeypatch, scenario, code=code, **options)
        assert says in result.finished.reason
        assert fix in result.finished.fix
        assert result.stderr.count(result.finished.reason.splitlines()[0]) == 1, result.stderr
        assert result.stderr.count(result.finished.fix) == 1, result.stderr
        return result


def printed(events: Sequence[Any]) -> tuple[str, str]:
    """What `tachyon evolve` prints for these events, on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    reporter = PlainReporter(out, err, width=400)
    view = SessionView()
    for event in events:
        view = fold(view, event)
        reporter.event(event, view)
    return out.getvalue(), err.getvalue()


@contextmanager
def once(there: Callable[[], object], act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` as soon as ``there`` is true while the block runs; it must become true."""
    over = threading.Event()
    acted = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            if there():
                acted.set()
                act()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(DEADLINE)
    assert acted.is_set()
