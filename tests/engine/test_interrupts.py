"""Ctrl-C at any point: exit code 130, the tree as last accepted, no process left, nothing printed but why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core import events as e
from tachyon_tui.core.commands import Pause, Review, Stop
from tachyon_tui.core.session import append_command, list_sessions
from tests.doubles.model_server import ModelServer
from tests.engine.lab import TESTS, Result
from tests.engine.scripted import ScriptLab, costs, once, printed, try_cost

Patch = pytest.MonkeyPatch
INTERRUPTED = "interrupted by SIGINT"


@pytest.fixture
def lab(tmp_path: Path) -> ScriptLab:
    return ScriptLab(tmp_path)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(
    lab: ScriptLab, monkeypatch: Patch, there: Callable[[], object], scenario: Any = (), **options: Any
) -> Result:
    """A session that is interrupted as soon as ``there`` is true and leaves the tree as it was."""
    with once(there, interrupt):
        result = lab.unchanged(monkeypatch, scenario, code=130, **options)
    assert result.finished.reason == INTERRUPTED
    return result


def holding(lab: ScriptLab) -> Callable[[], object]:
    """One of the scripts has come to the point where it stays."""
    return (lab.state / "holding").exists


@pytest.mark.parametrize("hold", ["hold_build_1000", "hold_run_1000", "calibration"])
def test_before_the_first_round(lab: ScriptLab, monkeypatch: Patch, hold: str) -> None:
    name, run = ("hold_run_1000", "4") if hold == "calibration" else (hold, "1")
    (lab.state / name).write_text(run, "utf-8")
    result = interrupted(lab, monkeypatch, holding(lab))
    assert "Interrupted before the first round; nothing was changed." in result.stderr
    assert result.stdout == ""


def test_a_stop_before_the_first_round(lab: ScriptLab, monkeypatch: Patch) -> None:
    (lab.state / "hold_run_1000").write_text("1", "utf-8")

    def stop() -> None:
        append_command(list_sessions(lab.root)[-1], Stop())

    with once(holding(lab), stop):
        result = lab.unchanged(monkeypatch, code=3)
    assert result.stderr.endswith("Ended: stopped by the user\n")


@pytest.mark.parametrize("behaviour", ["hang", "silent"])
def test_while_ncu_profiles(lab: ScriptLab, monkeypatch: Patch, behaviour: str) -> None:
    lab.with_ncu(behaviour)

    def logged() -> object:
        sessions = lab.root / ".tachyon" / "sessions"
        return [
            log for log in sessions.glob("*/reports/*/*.log") if behaviour == "silent" or log.stat().st_size
        ]

    interrupted(lab, monkeypatch, logged)


@pytest.mark.parametrize("fault", [{"stall": 60}, {"text": "so", "stall_midway": 60}, {"status": 429}])
def test_while_the_model_is_asked(lab: ScriptLab, monkeypatch: Patch, fault: dict[str, Any]) -> None:
    asked: list[Any] = []
    lab.at(1, asked.append)
    fault = {**fault, "headers": {"retry-after": "60"}} if "status" in fault else fault
    scenario = [[{"calls": [costs(500)]}, fault]]
    result = interrupted(lab, monkeypatch, lambda: asked, scenario)
    assert result.states == ["FAILED"]


@pytest.mark.parametrize("hold", ["hold_build_500", "hold_run_500"])
def test_in_a_candidates_build_or_run(lab: ScriptLab, monkeypatch: Patch, hold: str) -> None:
    (lab.state / hold).write_text("1", "utf-8")
    result = interrupted(lab, monkeypatch, holding(lab), [try_cost(500)])
    assert result.states == ["FAILED"]
    assert "cost=1000" in (lab.root / "app").read_text("utf-8")
    assert (result.paths.patches / "round-000.patch").is_file()


def test_while_a_person_decides(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.at(0, Review(on=True))
    asked: list[Any] = []
    lab.do_when(lambda event: isinstance(event, e.ReviewRequested), asked.append)
    result = interrupted(lab, monkeypatch, lambda: asked, [try_cost(500)])
    assert result.path[-2:] == ["REVIEW", "FAILED"]
    assert "cost=1000" in (lab.root / "app").read_text("utf-8")


def test_while_it_is_paused(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.at(0, Pause())
    asked: list[Any] = []
    lab.do_when(lambda event: isinstance(event, e.ControlChanged) and event.running == "paused", asked.append)
    interrupted(lab, monkeypatch, lambda: asked, [try_cost(500)])


def test_in_the_final_measurement(lab: ScriptLab, monkeypatch: Patch) -> None:
    (lab.state / "hold_after_commit").touch()
    with once(holding(lab), interrupt):
        result = lab.run(monkeypatch, [try_cost(500)], max_iterations=1)
    assert result.code == 130
    assert result.states == ["SUCCESS"]
    assert len(lab.subjects()) == 2
    assert lab.status() == "?? .tachyon/"
    assert "cost=500" in (lab.root / "app").read_text("utf-8")
    assert lab.children() == []
    assert result.of(e.Remeasured) == []
    out, err = printed(result.events)
    assert "No final re-measurement: the session was interrupted." in out
    assert err.count(f"Ended: {INTERRUPTED}") == 1


def test_again_while_the_source_is_put_back(lab: ScriptLab, monkeypatch: Patch) -> None:
    """The rebuild after a rollback is not interrupted; where it never ends, the kept build is put in place."""
    rebuild = lab.state / "hold_build_1000"
    (lab.state / "hold_run_500").write_text("1", "utf-8")

    def first() -> None:
        (lab.state / "holding").unlink()
        rebuild.touch()
        interrupt()

    with once(holding(lab), first):
        interrupted(
            lab, monkeypatch, lambda: rebuild.exists() and holding(lab)(), [try_cost(500)], build__timeout=1.0
        )
    assert "cost=1000" in (lab.root / "app").read_text("utf-8")


def test_a_terminal_that_hangs_up(lab: ScriptLab, monkeypatch: Patch) -> None:
    (lab.state / "hold_run_500").write_text("1", "utf-8")
    with once(holding(lab), lambda: os.kill(os.getpid(), signal.SIGHUP)):
        result = lab.unchanged(monkeypatch, [try_cost(500)], code=130)
    assert result.finished.reason == "interrupted by SIGHUP"


def test_without_rollback_the_candidate_stays_and_the_code_is_still_130(
    lab: ScriptLab, monkeypatch: Patch
) -> None:
    asked: list[Any] = []
    lab.at(1, asked.append)
    with once(lambda: asked, interrupt):
        result = lab.run(monkeypatch, [[{"calls": [costs(500)]}, {"stall": 60}]], git__auto_rollback=False)
    assert result.code == 130
    assert "cost = 500" in (lab.root / "reduce.cu").read_text("utf-8")


# -- real signals to the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_the_command_line(lab: ScriptLab, number: signal.Signals, group: bool) -> None:
    lab.write_config()
    before = lab.picture()
    (lab.state / "hold_run_500").write_text("1", "utf-8")
    with ModelServer([try_cost(500)], base=TESTS / "scenarios") as server:
        words = ["evolve", "./app", "-p", "openai", "-m", "fake-model", "--api-base", server.base_url]
        with _tachyon(lab, *words) as child:
            send = os.killpg if group else os.kill
            with once(holding(lab), lambda: send(child.pid, number)):
                out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert f"interrupted by {number.name}" in out + err
    assert "Traceback" not in out + err
    assert lab.picture() == before
    assert lab.children() == []
    assert not (list_sessions(lab.root)[-1].folder / "scratch").exists()


def test_ctrl_c_while_the_command_line_still_starts(lab: ScriptLab) -> None:
    """The interrupt strikes where no session has begun: our own handlers are not there yet."""
    program = lab.root.parent / "held.py"
    program.write_text(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import tachyon_tui.core.session as session\n"
        "def interrupted(start):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    raise AssertionError('not interrupted')\n"
        "session.find_root = interrupted\n"
        "from tachyon_tui.cli import main\n"
        "sys.argv = ['tachyon', 'evolve', './app']\n"
        "main()\n",
        "utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=lab.root, env=_environment(lab), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


def _tachyon(lab: ScriptLab, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tachyon_tui", *words],
        cwd=lab.root,
        env=_environment(lab),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _environment(lab: ScriptLab) -> dict[str, str]:
    return {**os.environ, **lab.env, "PYTHONPATH": str(TESTS.parent)}
