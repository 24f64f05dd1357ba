"""What goes wrong around a session that has begun: instruments, the model, the disk, other people's hands."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core import events as e
from tachyon_tui.core.commands import Continue
from tachyon_tui.core.session import SessionError, SessionPaths
from tachyon_tui.workspace import git
from tests.engine.lab import BUILD, FAKE_NCU, RUN, STATUS
from tests.engine.scripted import ScriptLab, costs, try_cost

Patch = pytest.MonkeyPatch
IDLE = [[{"text": "nothing comes to mind"}]]


@pytest.fixture
def lab(tmp_path: Path) -> ScriptLab:
    return ScriptLab(tmp_path)


def warnings(result: Any, name: str) -> list[e.PreflightCheck]:
    return [c for c in result.of(e.PreflightCheck) if c.name == name and c.status == "warning"]


# -- instruments -----------------------------------------------------------------------------------------------


def test_no_ncu_is_said_and_the_session_works(lab: ScriptLab, monkeypatch: Patch) -> None:
    result = lab.run(monkeypatch, [try_cost(500)], max_iterations=1)
    assert result.states == ["SUCCESS"]
    assert "There is no ncu at /nowhere/ncu" in warnings(result, "ncu")[0].message
    assert "[ncu] path" in warnings(result, "ncu")[0].fix


@pytest.mark.parametrize(
    ("behaviour", "says", "fix"),
    [
        ("permission", "may not read the GPU's performance counters", "NVreg_RestrictProfilingToAdminUsers"),
        ("driver", "does not fit the GPU driver", "[ncu] path"),
        ("busy", "Another program holds", "dcgmi profile --pause"),
        ("garbage-report", "ncu-rep", ""),
        ("truncated-report", "ncu-rep", ""),
        ("no-report", "wrote no report", "by hand"),
        ("no-kernels-matched", "did not happen under ncu", "-k"),
    ],
)
def test_a_diagnosis_that_fails_is_said_once_and_the_session_works(
    lab: ScriptLab, monkeypatch: Patch, behaviour: str, says: str, fix: str
) -> None:
    lab.with_ncu(behaviour)
    result = lab.unchanged(monkeypatch, IDLE, code=3, max_iterations=1)
    diagnosed = result.of(e.Diagnosed)[0]
    assert says in diagnosed.message
    assert fix in diagnosed.fix
    assert result.stderr.count(diagnosed.message) == 1
    assert result.stderr.count(diagnosed.fix) == 1
    assert diagnosed.fix


def test_an_old_ncu_profiles_with_what_it_knows(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.with_ncu("old")
    lab.env["NCU"] = str(lab.root.parent / "ncu")  # another name, as what an ncu says of itself is kept
    (lab.root.parent / "ncu").symlink_to(FAKE_NCU)
    result = lab.unchanged(monkeypatch, IDLE, code=3, max_iterations=1)
    assert any("2020.1.0" in check.message for check in result.of(e.PreflightCheck))
    assert result.of(e.Diagnosed)[0].status in {"ok", "partial"}


@pytest.mark.parametrize("why", ["missing", "injected", "unrecorded"])
def test_ncu_times_where_the_recorder_cannot(lab: ScriptLab, monkeypatch: Patch, why: str) -> None:
    lab.with_ncu()
    _without_recorder(lab, why)
    result = lab.refused(
        monkeypatch, "these ran: reduce_kernel(const float *", "-k", target_kernel="nope: a short session"
    )
    assert "ncu times the runs, because the recorder cannot" in warnings(result, "timer")[0].message
    assert warnings(result, "timer")[0].fix
    assert result.of(e.RunFinished)[-1].ok


@pytest.mark.parametrize("why", ["missing", "injected", "unrecorded"])
def test_without_recorder_and_ncu_there_is_the_stopwatch(
    lab: ScriptLab, monkeypatch: Patch, why: str
) -> None:
    _without_recorder(lab, why)
    result = lab.refused(monkeypatch, "Nothing can time the GPU", "--profiler stopwatch")
    assert "[stopwatch] pattern = 'time: ([0-9.]+) ms'" in result.finished.fix


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [("permission", "performance counters"), ("no-kernels", "No kernel"), ("driver", "GPU driver")],
)
def test_ncu_that_must_time_and_cannot(lab: ScriptLab, monkeypatch: Patch, behaviour: str, says: str) -> None:
    lab.with_ncu(behaviour)
    _without_recorder(lab, "missing")
    lab.refused(monkeypatch, says, "--profiler stopwatch")


def _without_recorder(lab: ScriptLab, why: str) -> None:
    if why == "missing":
        lab.env["TACHYON_RECORDER"] = "/nowhere/recorder.so"
    elif why == "injected":
        lab.env["CUDA_INJECTION64_PATH"] = "/opt/other/tool.so"
    else:
        (lab.state / "unrecorded").touch()


def test_a_stopwatch_without_a_match(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.refused(
        monkeypatch,
        "was not found in the program's output",
        "look at what it prints",
        profiler="stopwatch",
        stopwatch__pattern="time: ([0-9.]+)",
        allowed_edit_paths=("reduce.cu",),
    )


# -- a candidate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"verify__command": "sh -c '! grep -q cost=500 app'"}, "the verify command failed"),
        ({"verify__outputs": ("out.txt",)}, "an output file differs"),
    ],
)
def test_a_candidate_that_fails_the_users_own_check(
    lab: ScriptLab, monkeypatch: Patch, options: dict[str, Any], says: str
) -> None:
    lab.says('echo "$cost us in all" > out.txt; echo ok')
    lab.commit(".gitignore", "app\nout.txt\n")
    result = lab.unchanged(monkeypatch, [try_cost(500)], code=3, max_iterations=1, **options)
    assert result.states == ["ROLLED_BACK"]
    assert says in result.reasons[0]


def test_a_candidates_build_that_makes_no_program(lab: ScriptLab, monkeypatch: Patch) -> None:
    build = "./build.sh && { grep -q 'cost = 1000' reduce.cu || rm app; }"
    result = lab.unchanged(monkeypatch, [try_cost(500), *IDLE], code=3, max_iterations=2, build_cmd=build)
    assert result.states == ["ROLLED_BACK", "FAILED"]
    assert "left nothing that can be kept" in result.reasons[0]


# -- the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "says", "fix"),
    [
        ({"status": 401}, "openai refused the key", "Set OPENAI_API_KEY to a valid key"),
        ({"status": 404}, "does not know the model fake-model", "the name given with -m"),
        ({"status": 400}, "refused the request", "the model's name"),
        ({"status": 503}, "did not answer after 1 attempts", "then start again"),
        ({"drop": True}, "did not answer after 1 attempts", "then start again"),
    ],
)
def test_a_model_that_refuses(
    lab: ScriptLab, monkeypatch: Patch, answer: dict[str, Any], says: str, fix: str
) -> None:
    result = lab.refused(monkeypatch, says, fix, [[answer]], code=1, llm__retries=0)
    assert result.states == ["FAILED"]
    assert "--resume" not in result.stderr


def test_an_endpoint_that_is_down(lab: ScriptLab, monkeypatch: Patch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        lab.refused(monkeypatch, f"Nothing answers at {url}", "correct --api-base", llm__api_base=url)


def test_a_key_that_is_refused_after_the_first_round(lab: ScriptLab, monkeypatch: Patch) -> None:
    scenario = [try_cost(500), [{"calls": [costs(400, 500), BUILD]}, {"status": 401}]]
    result = lab.run(monkeypatch, scenario, max_iterations=9)
    assert result.states == ["SUCCESS", "FAILED"]
    assert result.code == 1
    assert "OPENAI_API_KEY" in result.finished.fix
    assert "cost = 500" in (lab.root / "reduce.cu").read_text("utf-8")
    assert lab.status() == "?? .tachyon/"
    assert len(lab.subjects()) == 2


def test_a_refused_key_costs_no_round(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.when(_paused, Continue())
    scenario = [[{"status": 401}], try_cost(500)]
    result = lab.run(monkeypatch, scenario, max_iterations=1, attended=True)
    assert result.states == ["FAILED", "SUCCESS"]
    assert any("refused the key" in notice.message and notice.fix for notice in result.of(e.Notice))


def _paused(event: Any) -> bool:
    return isinstance(event, e.ControlChanged) and event.running == "paused"


@pytest.mark.parametrize(
    "fault", [{"status": 429, "headers": {"retry-after": "0"}}, {"text": "half", "drop": True}]
)
def test_a_fault_that_passes_costs_nothing(lab: ScriptLab, monkeypatch: Patch, fault: dict[str, Any]) -> None:
    first, second, last = try_cost(500)
    result = lab.run(monkeypatch, [[first, fault, second, last]], max_iterations=1)
    assert result.states == ["SUCCESS"]
    assert len(result.of(e.Retrying)) == 1
    assert result.finished.failed == 0


# -- the disk ----------------------------------------------------------------------------------------------------


def _fill_the_disk(paths: SessionPaths) -> None:
    """Every further write to the journal fails with ENOSPC, as /dev/full does."""
    full = os.open("/dev/full", os.O_WRONLY)
    for link in Path("/proc/self/fd").iterdir():
        number = int(link.name)
        try:
            if link.readlink() == paths.journal and _writes(number):
                os.dup2(full, number)
        except FileNotFoundError:
            continue
    os.close(full)


def _info(number: int) -> bytes:
    return Path(f"/proc/self/fdinfo/{number}").read_bytes()


def _writes(number: int) -> bool:
    flags = next(line for line in _info(number).splitlines() if line.startswith(b"flags:"))
    return bool(int(flags.split()[1], 8) & os.O_WRONLY)


@pytest.mark.parametrize("request_number", [0, 1, 2])
def test_a_full_disk_ends_the_session_with_the_source_put_back(
    lab: ScriptLab, monkeypatch: Patch, request_number: int
) -> None:
    lab.write_config()
    before = lab.picture()
    scenario = [[{"calls": [costs(500), BUILD]}, {"calls": [RUN]}, {"calls": [STATUS]}, {"text": "x"}]]
    lab.at(request_number, _fill_the_disk)
    with pytest.raises(SessionError) as caught:
        lab.run(monkeypatch, scenario, max_iterations=1)
    assert "The journal cannot be written: [Errno 28] No space left on device" in caught.value.message
    assert "Free some disk space" in caught.value.fix
    assert "--resume" not in caught.value.fix
    assert caught.value.exit_code == 1
    assert lab.picture() == before
    assert "cost=1000" in (lab.root / "app").read_text("utf-8")
    assert lab.children() == []


@pytest.mark.parametrize("folder", ["patches", "logs"])
def test_a_session_folder_that_cannot_be_written(lab: ScriptLab, monkeypatch: Patch, folder: str) -> None:
    def spoil(paths: SessionPaths) -> None:
        place = paths.folder / folder
        place.rename(paths.folder / "gone")
        place.write_text("a file is no folder", "utf-8")

    lab.at(0, spoil)
    lab.refused(monkeypatch, folder, "disk is not full", [try_cost(500)], code=1, max_iterations=1)
    assert "cost=1000" in (lab.root / "app").read_text("utf-8")


# -- other people's hands ----------------------------------------------------------------------------------------


def test_a_git_that_is_busy_at_the_commit(lab: ScriptLab, monkeypatch: Patch) -> None:
    monkeypatch.setattr(git, "LOCK_SECONDS", 0.05)
    lock = lab.root / ".git" / "index.lock"
    lab.at(2, lambda _paths: lock.touch())
    result = lab.refused(
        monkeypatch, "Another git holds", "remove the file", [try_cost(500)], code=1, max_iterations=1
    )
    assert result.states == ["FAILED"]
    assert (result.paths.patches / "round-000.patch").is_file()


def test_head_moves_under_the_loop(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.at(2, lambda _paths: lab.git("switch", "-q", "-c", "elsewhere"))
    result = lab.run(monkeypatch, [try_cost(500)], max_iterations=1)
    assert result.code == 1
    assert "expected main, found elsewhere" in result.finished.reason
    assert result.finished.fix
    assert lab.subjects() == ["start"]


# -- the command line --------------------------------------------------------------------------------------------


def test_the_command_line_prints_one_message_and_its_fix(lab: ScriptLab) -> None:
    result = lab.cli("evolve", "./app", "--branch", "no such name")
    assert result.code == 2
    assert result.stdout == ""
    assert result.stderr.count("'no such name' is not a name for a branch.") == 1
    assert result.stderr.count("  Fix: Choose another name for --branch.") == 1
    assert "Traceback" not in result.stderr


def test_quiet_and_json_say_it_too(lab: ScriptLab) -> None:
    quiet = lab.cli("evolve", "-q", "./app", "--branch", "no such name")
    assert (quiet.code, quiet.stdout) == (2, "")
    assert quiet.stderr.count("'no such name' is not a name for a branch.") == 1
    lines = lab.cli("evolve", "--json", "./app", "--branch", "no such name").stdout.splitlines()
    assert json.loads(lines[-1])["exit_code"] == 2
    assert json.loads(lines[-1])["fix"]


def test_a_session_from_a_subfolder(lab: ScriptLab) -> None:
    (lab.root / "sub").mkdir()
    result = lab.cli(
        "evolve", "--build", "cd .. && ./build.sh", "../app", "--max-iterations", "1",
        scenario=[try_cost(500)], cwd=lab.root / "sub",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    assert lab.git("show", "--name-only", "--format=", "HEAD") == "reduce.cu"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_iteratons = 3", "evolve.toml:1: max_iteratons: unknown key, did you mean `max_iterations`?"),
        ("\n[run]\ntimeout = 'long'", "evolve.toml:3: run.timeout:"),
        ("build_cmd = ", "is not valid TOML"),
    ],
)
def test_a_broken_config_names_file_line_and_key(lab: ScriptLab, text: str, says: str) -> None:
    lab.config = [text]
    result = lab.cli("evolve", "./app")
    assert result.code == 2
    assert says in result.stderr
    assert "Fix: Correct the file or the option" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_config_that_is_missing(lab: ScriptLab) -> None:
    result = lab.cli("evolve", "--config", "none.toml", "./app")
    assert result.code == 2
    assert "none.toml does not exist" in result.stderr
