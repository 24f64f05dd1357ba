"""The engine is killed (-9): what the next start says to type brings the accepted state back."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tachyon_tui.core.session import find_session, read_owner
from tests.engine.lab import BUILD, FASTER, PROFILE, RUN, SLOWER_ROWS, STATUS, Lab, edit, slightly, turn

Patch = pytest.MonkeyPatch


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def killed_at(lab: Lab, request: int, scenario: list[object], *options: str) -> None:
    """Play the scenario through the command line and kill the engine at a request to the model."""

    def kill(number: int) -> None:
        if number == request:
            owner = read_owner(find_session(lab.root).lock)
            assert owner is not None
            os.kill(owner.pid, signal.SIGKILL)

    result = lab.cli("evolve", "./app", *options, scenario=scenario, on_request=kill)
    assert result.code == -signal.SIGKILL


def advice(lab: Lab, monkeypatch: Patch) -> str:
    """What a new start says to do."""
    result = lab.run(monkeypatch, [], max_iterations=1)
    assert result.code == 2
    return result.finished.fix


def type_first_command(lab: Lab, fix: str) -> None:
    command = next(part for part in fix.split("`") if part.startswith(("git restore", "cp -r", "rm ")))
    subprocess.run(shlex.split(command), cwd=lab.root, check=True, env={**os.environ, **lab.env})


def test_the_advice_brings_the_accepted_state_back_each_time(lab: Lab, monkeypatch: Patch) -> None:
    killed_at(lab, 4, [turn(FASTER), [{"calls": [*SLOWER_ROWS, BUILD]}, {"calls": [STATUS]}]])
    assert "M reduce.cu" in lab.status()
    first, second = advice(lab, monkeypatch), advice(lab, monkeypatch)
    assert first == second, "a refused start in between changes nothing"
    (lab.root / "reduce.cu").write_bytes(b"// the index is stale as well")
    lab.git("add", "reduce.cu")
    type_first_command(lab, first)
    assert lab.status() == "?? .tachyon/"
    assert (lab.root / "reduce.cu").read_text("utf-8") == lab.git("show", "HEAD:reduce.cu") + "\n"


def test_uncommitted_accepted_work_comes_back(lab: Lab, monkeypatch: Patch) -> None:
    lab.config.append("[git]\nauto_commit = false")
    killed_at(lab, 4, [turn(FASTER), [{"calls": [*SLOWER_ROWS, BUILD]}, {"calls": [STATUS]}]])
    type_first_command(lab, advice(lab, monkeypatch))
    text = (lab.root / "reduce.cu").read_text("utf-8")
    assert "float sum" in text
    assert "5000" not in text
    assert lab.run(monkeypatch, [[{"text": "x"}]], max_iterations=1).code == 3, "it may start now"


def test_new_files_of_a_killed_candidate_are_named(lab: Lab, monkeypatch: Patch) -> None:
    made = edit("", "// helper\n", "helper.cuh")
    killed_at(lab, 1, [[{"calls": [made]}, {"calls": [STATUS]}]])
    assert (lab.root / "helper.cuh").exists()
    fix = advice(lab, monkeypatch)
    assert "rm helper.cuh" in fix
    type_first_command(lab, fix)
    assert lab.run(monkeypatch, [[{"text": "x"}]], max_iterations=1).code == 3


@pytest.mark.parametrize(
    "sabotage",
    [
        'rm -f "$TACHYON_RECORD".*; mkfifo "$TACHYON_RECORD.99999"',
        'd=$(dirname "$TACHYON_RECORD"); rm -f $d/stdout; mkfifo $d/stdout',
        "rm -f app",
        "cp app other; echo >> other; mv other app",
    ],
)
def test_a_program_that_spoils_its_own_run_loses_its_round_alone(
    lab: Lab, monkeypatch: Patch, sabotage: str
) -> None:
    quoted = sabotage.replace('"', '\\"')
    spoil = edit("    LAUNCH(", f'    if (getenv("TACHYON_RECORD")) (void)!system("{quoted}");\n    LAUNCH(')
    scenario = [
        [{"calls": [*slightly(2), spoil, BUILD]}, {"calls": [RUN, PROFILE]}, {"text": "x"}],
        turn(FASTER),
    ]
    result = lab.run(monkeypatch, scenario, max_iterations=2)
    assert result.states == ["ROLLED_BACK", "SUCCESS"], result.reasons
