"""Bad input before the first round: one clear message with its fix, the right exit code, the tree as it was."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.core import events as e
from tachyon_tui.engine import preflight
from tests.conftest import DATA
from tests.engine.lab import Lab
from tests.engine.scripted import ScriptLab, try_cost

Patch = pytest.MonkeyPatch
REPORT = DATA / "reports" / "cu_reduce-baseline.ncu-rep.xz"


@pytest.fixture
def lab(tmp_path: Path) -> ScriptLab:
    return ScriptLab(tmp_path)


def checks(result: Any, name: str, status: str) -> list[e.PreflightCheck]:
    return [c for c in result.of(e.PreflightCheck) if c.name == name and c.status == status]


# -- git -------------------------------------------------------------------------------------------------------


def test_no_git(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "script_gpu")
    shutil.rmtree(lab.root / ".git")
    result = lab.cli("evolve", "./app")
    assert result.code == 2
    assert "is in no git repository" in result.stderr
    assert "git init" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (lab.root / ".tachyon" / "sessions").exists()


def test_no_commit_yet(lab: ScriptLab, monkeypatch: Patch) -> None:
    shutil.rmtree(lab.root / ".git")
    lab.git("init", "-q", "-b", "main")
    lab.refused(monkeypatch, "The branch main has no commit yet", "git add FILES && git commit")
    assert "sessions" not in lab.git("status", "--porcelain", "-uall")


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (["merge", "other"], "git merge --abort"),
        (["rebase", "other"], "git rebase --abort"),
        (["cherry-pick", "other"], "git cherry-pick --abort"),
        (["bisect", "start"], "git bisect reset"),
    ],
)
def test_an_unfinished_merge(lab: ScriptLab, monkeypatch: Patch, begin: list[str], end: str) -> None:
    lab.git("branch", "other")
    lab.commit("reduce.cu", "int cost = 1;\n")
    lab.git("switch", "-q", "other")
    lab.commit("reduce.cu", "int cost = 2;\n")
    lab.git("switch", "-q", "main")
    lab.git_may_fail(*begin)
    lab.refused(monkeypatch, f"A {begin[0]} is in progress", end)


@pytest.mark.parametrize("staged", [False, True])
def test_changes_in_an_editable_file(lab: ScriptLab, monkeypatch: Patch, staged: bool) -> None:
    with (lab.root / "reduce.cu").open("a") as file:
        file.write("// mine\n")
    if staged:
        lab.git("add", "reduce.cu")
    lab.refused(monkeypatch, "uncommitted changes: reduce.cu", "git commit reduce.cu")


def test_changes_elsewhere_are_only_named(lab: ScriptLab, monkeypatch: Patch) -> None:
    with (lab.root / "app.in").open("a") as file:
        file.write("# mine\n")
    result = lab.unchanged(monkeypatch, [[{"text": "x"}]], code=3, max_iterations=1)
    assert [c for c in checks(result, "git", "warning") if "app.in" in c.message]


@pytest.mark.parametrize("branch", ["no such name", "-x", "other"])
def test_a_branch_that_cannot_take_commits(lab: ScriptLab, monkeypatch: Patch, branch: str) -> None:
    lab.git("branch", "other")
    lab.git("switch", "-q", "other")
    lab.commit("app.in", "other")
    lab.git("switch", "-q", "main")
    result = lab.refused(monkeypatch, branch, "--branch", git__branch=branch)
    assert result.of(e.BuildFinished) == []


def test_a_detached_head_takes_the_commits(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.git("switch", "-q", "--detach")
    result = lab.run(monkeypatch, [try_cost(500)], max_iterations=1)
    assert result.states == ["SUCCESS"]
    assert lab.subjects()[0].startswith("tachyon:")
    assert lab.git("log", "-1", "--format=%s", "main") == "start"


# -- settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says", "fix"),
    [
        ({"verify__ignore": ("(",)}, "[verify] ignore", "backslash"),
        ({"ncu__args": "--cache-control all"}, "--cache-control", "[ncu] args"),
        ({"ncu__args": 'a"b'}, "cannot be split", "[ncu] args"),
        (
            {"profiler": "stopwatch", "stopwatch__pattern": "("},
            "no regular expression",
            "[stopwatch] pattern",
        ),
        ({"verify__outputs": ("../x",)}, "not below the project", "relative to"),
        ({"verify__outputs": ("reduce.cu",)}, "must not be deleted", "git does not track"),
        ({"verify__sanitizer": "final"}, "compute-sanitizer was not found", 'sanitizer = "off"'),
        ({"report": "none.ncu-rep"}, "none.ncu-rep", ""),
        ({"llm__max_cost": 1.0}, "--max-cost", "--max-tokens"),
        ({"llm__model": ""}, "No model is named", "-m MODEL"),
        ({"llm__provider": "opnai", "llm__api_base": ""}, "No known provider", "openai"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused_before_the_build(
    lab: ScriptLab, monkeypatch: Patch, options: dict[str, Any], says: str, fix: str
) -> None:
    lab.env["PATH"] = "/usr/bin:/bin"
    result = lab.refused(monkeypatch, says, fix, **options)
    assert result.finished.fix
    assert result.of(e.BuildFinished) == []


def test_no_api_key(lab: ScriptLab, monkeypatch: Patch) -> None:
    del lab.env["OPENAI_API_KEY"]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lab.refused(
        monkeypatch,
        "OPENAI_API_KEY is not set",
        "export OPENAI_API_KEY=",
        llm__api_base="",
        llm__model="gpt-4o",
    )


def test_allowed_paths_without_a_file(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.refused(monkeypatch, "allowed_edit_paths names src/", "relative to", allowed_edit_paths=("src/",))


@pytest.mark.parametrize(
    ("content", "says"), [(b"no report\n", "ncu-rep"), (None, "ncu-rep"), (b"", "ncu-rep")]
)
def test_a_report_that_cannot_be_read(
    lab: ScriptLab, monkeypatch: Patch, content: bytes | None, says: str
) -> None:
    whole = lzma.decompress(REPORT.read_bytes())
    (lab.root.parent / "x.ncu-rep").write_bytes(whole[: len(whole) // 2] if content is None else content)
    result = lab.refused(monkeypatch, says, "", report="../x.ncu-rep")
    assert result.finished.fix
    assert result.of(e.BuildFinished) == []


def test_no_space(lab: ScriptLab, monkeypatch: Patch) -> None:
    monkeypatch.setattr(preflight, "LEAST_DISK", 1 << 60)
    lab.refused(monkeypatch, "are free in", "Free 1")


# -- the build -------------------------------------------------------------------------------------------------


def test_no_build_command_for_compiled_source(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.env["PATH"] = "/usr/bin:/bin"
    lab.shell("./build.sh")
    lab.config.remove('build_cmd = "./build.sh"')
    lab.refused(
        monkeypatch, "reduce.cu must be compiled, and there is no build command", '--build "make -j8"'
    )


def test_no_build_command_and_no_program(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.config.remove('build_cmd = "./build.sh"')
    lab.refused(monkeypatch, "./app cannot be started", '--build "make -j8"')


def test_a_build_that_fails_shows_the_compilers_words(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.commit("reduce.cu", "__global__ void reduce_kernel() {}\n")
    result = lab.refused(monkeypatch, "build failed: exit code 1", "run `./build.sh` and mend it")
    assert "reduce.cu:3: error: no cost" in result.stderr


def test_a_build_command_that_does_not_exist(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.refused(
        monkeypatch, "./nope cannot be started: No such file", "Check that it exists", build_cmd="./nope"
    )


def test_a_build_that_never_ends(lab: ScriptLab, monkeypatch: Patch) -> None:
    (lab.state / "hold_build_1000").touch()
    lab.refused(monkeypatch, "build failed: no end after", "./build.sh", build__timeout=0.2)


def test_a_build_that_does_not_rebuild(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.shell("./build.sh")
    lab.refused(monkeypatch, "rewrote no file although reduce.cu", "build_cmd", build_cmd="true")


def test_a_program_that_is_missing_after_the_build(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.refused(
        monkeypatch, "./app cannot be started", "named as seen from", build_cmd="./build.sh && rm app"
    )


def test_a_program_that_only_the_build_makes_is_found(lab: ScriptLab) -> None:
    result = lab.cli("evolve", "app", "--max-iterations", "1", scenario=[[{"text": "x"}]])
    assert result.code == 3, result.stderr


# -- the program -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo out of luck >&2; exit 7", "exit code 7\nout of luck"),
        ("kill -SEGV $$", "ended by SIGSEGV"),
        ("sleep 60", "no end after"),
        ("trap '' TERM; (setsid sleep 61 &) ; sleep 60", "no end after"),
        ("exec yes endless", "it printed too much"),
    ],
)
def test_a_program_that_does_not_run(lab: ScriptLab, monkeypatch: Patch, script: str, says: str) -> None:
    lab.says(script)
    result = lab.refused(monkeypatch, says, "`./app` must end by itself with exit code 0", run__timeout=1.0)
    assert "[run] timeout" in result.finished.fix


def test_a_program_that_fails_now_and_then(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.says('[ "$runs" -ne 4 ] || exit 1')
    lab.refused(monkeypatch, "run 3 of the calibration failed", "must pass every time")


def test_a_program_that_prints_two_million_lines(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.says("yes 'a row is done' | head -n 2000000")
    result = lab.unchanged(monkeypatch, [[{"text": "x"}]], code=3, max_iterations=1)
    assert result.of(e.Calibrated)[0].oracle
    assert max(len(event.model_dump_json()) for event in result.events) < 100_000


def test_a_program_that_prints_nothing_stable(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.says('echo "$runs"')
    result = lab.run(monkeypatch, [try_cost(500)], max_iterations=1)
    assert result.of(e.Calibrated)[0].exit_code_alone
    assert checks(result, "check", "warning")[0].fix
    assert "on the exit code alone" in lab.git("log", "-1", "--format=%B")


def test_launch_counts_that_differ(lab: ScriptLab, monkeypatch: Patch) -> None:
    (lab.state / "more_launches").touch()
    lab.refused(monkeypatch, "a different number of times in each run", '[judge] per = "launch"')


def test_launch_counts_that_differ_are_judged_per_launch(lab: ScriptLab, monkeypatch: Patch) -> None:
    (lab.state / "more_launches").touch()
    result = lab.run(monkeypatch, [try_cost(500)], max_iterations=1, judge__per="launch")
    assert result.states == ["SUCCESS"]


@pytest.mark.parametrize("min_gain", [0.01, 0.3])
def test_a_noisy_program_is_told_so(lab: ScriptLab, monkeypatch: Patch, min_gain: float) -> None:
    (lab.state / "noisy").touch()
    result = lab.unchanged(monkeypatch, [[{"text": "x"}]], code=3, max_iterations=1, judge__min_gain=min_gain)
    noise = checks(result, "noise", "warning")
    assert "may be missed" in noise[0].message
    assert "lock the clocks" in noise[0].fix


@pytest.mark.parametrize("text", ["nope", "reduce.*", "Reduce"])
def test_no_kernel_of_that_name(lab: ScriptLab, monkeypatch: Patch, text: str) -> None:
    lab.refused(
        monkeypatch,
        "these ran: reduce_kernel(float const*, float*, int)",
        "Give -k a part of one of these names",
        target_kernel=text,
    )


# -- the checks of the user's own --------------------------------------------------------------------------------


def test_a_verify_command_that_fails(lab: ScriptLab, monkeypatch: Patch) -> None:
    command = "sh -c 'echo bad sum; exit 4'"
    lab.refused(
        monkeypatch, "the verify command failed: exit code 4\nbad sum", command, verify__command=command
    )


def test_a_verify_command_that_does_not_exist(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.refused(monkeypatch, "./check cannot be started", "Check that it exists", verify__command="./check")


def test_an_output_that_is_not_written(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.refused(monkeypatch, "did not write out.bin", "relative to", verify__outputs=("out.bin",))


def test_too_little_time_for_the_checks(lab: ScriptLab, monkeypatch: Patch) -> None:
    lab.says("sleep 60")
    lab.refused(monkeypatch, "total timeout", "raise --timeout", timeout=0.5)
