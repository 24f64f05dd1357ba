"""Finding, asking, commanding and judging ncu, against a fake of it at the process edge."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tachyon_tui.core.settings import NcuSettings
from tachyon_tui.profilers.base import ChildEnd, DiagnosisOutcome, Wanted
from tachyon_tui.profilers.ncu import (
    NcuDiagnoser,
    NcuMissing,
    check_extra_args,
    command,
    escape_regex,
    find_ncu,
    function_name,
    select,
    tool,
)
from tachyon_tui.profilers.ncu_log import available_kernels, classify, ncu_text, passes, permission_fix

TESTS = Path(__file__).parent.parent
FAKE = str(TESTS / "doubles" / "fake_ncu.py")
LOGS = TESTS / "data" / "ncu-logs"
REDUCE = Wanted("_Z13reduce_kernelPKfPfi", 0)
MATMUL = Wanted("_Z13matmul_kernelPKfS0_Pfiii", 0)
PROGRAM = [sys.executable, "-c", "pass"]


# ---------------------------------------------------------------------------------------------- classifier


def recorded(name: str) -> tuple[str, int, bool]:
    """Log, exit code, and whether our own deadline ended the run (exit code 124 of timeout(1))."""
    text = (LOGS / f"{name}.txt").read_text()
    log, _mark, code = text.rpartition("rc=")
    number = int(code.split()[0])
    return log, number, number == 124


RECORDED = [
    ("ok", True, "ok"),
    ("time-only-with-report", True, "ok"),
    ("diagnosis-with-slow-warning", True, "ok"),
    ("exit-1-ended-by-kill", True, "ok"),
    ("unknown-metric", True, "ok"),
    ("app-exit-1", True, "partial"),
    ("app-abort", True, "partial"),
    ("app-exit-1", False, "app_failed"),
    ("illegal-access", False, "app_failed"),
    ("illegal-access-ended-by-kill", False, "report_bad"),
    ("hang-killed-by-timeout", False, "timeout"),
    ("orphan-child-holds-session", True, "partial"),
    ("orphan-child-holds-session", False, "timeout"),
    ("no-kernels", False, "no_kernels"),
    ("no-kernels-matched", False, "no_kernels"),
    ("skip-too-far", False, "no_kernels"),
    ("executable-missing", False, "executable_missing"),
    ("no-program", False, "executable_missing"),
    ("report-exists", False, "report_exists"),
    ("unrecognised-option", False, "bad_option"),
    ("option-twice", False, "bad_option"),
    ("invalid-value", False, "bad_option"),
    ("unknown-set", False, "bad_option"),
    ("unwritable-report", False, "ncu_failed"),
    ("unwritable-log", False, "ncu_failed"),
]


@pytest.mark.parametrize(("name", "report_ok", "status"), RECORDED)
def test_recorded_logs(name: str, report_ok: bool, status: str) -> None:
    log, code, timed_out = recorded(name)
    verdict = classify(log, code, timed_out, report_ok)
    assert verdict.status == status
    assert bool(verdict.message) == bool(verdict.fix) == (status != "ok")


def test_every_recorded_log_is_tested() -> None:
    assert {name for name, _report_ok, _status in RECORDED} == {path.stem for path in LOGS.glob("*.txt")}


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "permission"),
        ("==ERROR== Profiling is not supported on device 0. Use --list-chips", "unsupported_gpu"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "driver"),
        ("==ERROR== Failed to load Nsight Compute CUDA modules.", "driver"),
        ("==ERROR== Failed to open/create lock file /tmp/lock", "busy"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "busy"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "ncu_failed"),
        ("==ERROR== Failed to find metric nope__x", "bad_option"),
        ("==ERROR== Failed to save memory for replay", "ncu_failed"),
        ('==ERROR== Failed to profile "k" in process 1', "ncu_failed"),
        ("==ERROR== The target process has crashed", "app_failed"),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_known_failures_whatever_the_exit_code_and_the_last_line(line: str, status: str, code: int) -> None:
    log = (
        f"==PROF== Connected to process 7 (/x)\n{line}\n==PROF== Disconnected from process 7\n"
        "==WARNING== No kernels were profiled.\n==ERROR== The application returned an error code (11).\n"
    )
    verdict = classify(log, code, timed_out=False, report_ok=False)
    assert verdict.status == status
    assert verdict.fix
    assert line in verdict.details


def test_exit_code_alone_is_no_failure_of_the_program() -> None:
    verdict = classify("", 3, timed_out=False, report_ok=False)
    assert verdict.status == "ncu_failed"
    assert "3" in verdict.message


def test_words_of_the_program_are_not_trusted() -> None:
    log = "ERR_NVGPUCTRPERM\nNo kernels were profiled\n==PROF== Report: x\n"
    assert classify(log, 0, timed_out=False, report_ok=True).status == "ok"


def test_silence_until_the_deadline_means_another_ncu() -> None:
    verdict = classify("", 143, timed_out=True, report_ok=False)
    assert verdict.status == "busy"
    assert "another ncu" in verdict.message


def test_hanging_kernel_is_named() -> None:
    log, code, timed_out = recorded("hang-killed-by-timeout")
    verdict = classify(log, code, timed_out, report_ok=False)
    assert "spin(volatile int *)" in verdict.message
    assert "--replay-mode" in verdict.fix


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("no-kernels-matched", ("scale_inplace", "transpose_naive")),
        ("skip-too-far", ("_Z13scale_inplacePfmf",)),
        ("no-kernels", ()),
        ("ok", ()),
    ],
)
def test_available_kernels(name: str, kernels: tuple[str, ...]) -> None:
    assert available_kernels(recorded(name)[0]) == kernels


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("ok", 1),
        ("diagnosis-with-slow-warning", 38),
        ("time-only-with-report", 3),
        ("hang-killed-by-timeout", 0),
    ],
)
def test_passes(name: str, count: int) -> None:
    assert passes(recorded(name)[0]) == count


def test_errors_of_the_command_line_are_on_stdout(tmp_path: Path) -> None:
    log = tmp_path / "ncu.log"
    assert ncu_text(log, "==ERROR== refused") == "==ERROR== refused"
    log.write_text("==PROF== Connected\n")
    assert ncu_text(log, "words of the program") == "==PROF== Connected\n"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"proc/version": "Linux 5.15 Microsoft WSL2"}, "NVIDIA Control Panel"),
        ({".dockerenv": ""}, "--cap-add=SYS_ADMIN"),
        ({"run/.containerenv": "", "proc/version": "Linux 6.8"}, "--cap-add=SYS_ADMIN"),
        ({"proc/version": "Linux 6.8"}, "NVreg_RestrictProfilingToAdminUsers=0"),
        ({}, "NVreg_RestrictProfilingToAdminUsers=0"),
    ],
)
def test_permission_fix_fits_the_machine(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert words in permission_fix(tmp_path)


# ---------------------------------------------------------------------------------------- finding and asking


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_find_ncu_in_order(tmp_path: Path) -> None:
    newest = executable(tmp_path / "opt/nvidia/nsight-compute/2025.3.1/ncu")
    executable(tmp_path / "opt/nvidia/nsight-compute/2025.10.0/ncu")
    executable(tmp_path / "opt/nvidia/nsight-compute/2024.1.0/ncu")
    env: dict[str, str] = {"PATH": ""}
    newest = tmp_path / "opt/nvidia/nsight-compute/2025.10.0/ncu"
    assert find_ncu(env=env, root=tmp_path) == str(newest)
    toolkit = executable(tmp_path / "usr/local/cuda/bin/ncu")
    assert find_ncu(env=env, root=tmp_path) == str(toolkit)
    env["CUDA_HOME"] = str(tmp_path / "home")
    home = executable(tmp_path / "home/bin/ncu")
    assert find_ncu(env=env, root=tmp_path) == str(home)
    env["PATH"] = str(tmp_path / "bin")
    on_path = executable(tmp_path / "bin/ncu")
    assert find_ncu(env=env, root=tmp_path) == str(on_path)
    env["NSIGHT_COMPUTE"] = str(tmp_path / "nsight")
    folder = executable(tmp_path / "nsight/ncu")
    assert find_ncu(env=env, root=tmp_path) == str(folder)
    env["NCU"] = str(executable(tmp_path / "mine/ncu-2025"))
    assert find_ncu(env=env, root=tmp_path) == env["NCU"]
    setting = str(executable(tmp_path / "set/ncu"))
    assert find_ncu(setting, env, tmp_path) == setting


def test_pinned_path_that_vanished_is_not_replaced(tmp_path: Path) -> None:
    executable(tmp_path / "usr/local/cuda/bin/ncu")
    with pytest.raises(NcuMissing, match="There is no ncu at") as caught:
        find_ncu(str(tmp_path / "gone/ncu"), {"PATH": ""}, tmp_path)
    assert "[ncu] path" in caught.value.fix


def test_no_ncu_at_all(tmp_path: Path) -> None:
    with pytest.raises(NcuMissing, match="not found"):
        find_ncu(env={"PATH": ""}, root=tmp_path)


def test_tool_reads_version_and_options() -> None:
    ncu = tool(NcuSettings(path=FAKE))
    assert ncu.version == (2025, 3, 1, 0)
    assert {"--null-stdin", "--kernel-name-base", "--set"} <= ncu.options
    assert "--no-such-option" not in ncu.options


def test_ncu_that_does_not_start(tmp_path: Path) -> None:
    broken = executable(tmp_path / "ncu", "#!/nowhere/interpreter\n")
    with pytest.raises(NcuMissing, match="cannot be started"):
        tool(NcuSettings(path=str(broken)))


# -------------------------------------------------------------------------------------------- command lines


def line_for(settings: NcuSettings, wanted: Wanted = REDUCE) -> list[str]:
    ncu = tool(settings)
    return command(ncu, settings, select(ncu, wanted), Path("/r.ncu-rep"), Path("/l.log"), ["./app", "-x"])


def test_command_line() -> None:
    line = line_for(NcuSettings(path=FAKE, args='--source-folders "my src"'))
    assert line[0] == FAKE
    assert line[-3:] == ["--", "./app", "-x"]
    assert line[-5:-3] == ["--source-folders", "my src"]
    for part in ("--config-file=off", "--target-processes=all", "--clock-control=none", "--null-stdin", "-f"):
        assert part in line
    assert "--kernel-name=regex:^_Z13reduce_kernelPKfPfi$" in line
    assert "--kernel-name-base=mangled" in line
    assert line[line.index("-o") + 1] == "/r.ncu-rep"
    assert line[line.index("--log-file") + 1] == "/l.log"


def test_demangled_name_is_matched_as_demangled() -> None:
    line = line_for(NcuSettings(path=FAKE), Wanted("ns::k<(int)4>(float *, int [2])", 3))
    assert "--kernel-name-base=demangled" in line
    assert r"--kernel-name=regex:^ns::k<\(int\)4>\(float \*, int \[2\]\)$" in line
    assert "--launch-skip=3" in line


def test_old_ncu_gets_only_options_that_it_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_NCU", "old")
    line = line_for(NcuSettings(path=own_copy(tmp_path)))
    assert "--kernel-name=regex:^reduce_kernel$" in line
    for gone in ("--null-stdin", "--config-file", "--rename-kernels", "--kernel-name-base"):
        assert not [word for word in line if word.startswith(gone + "=") or word == gone]


@pytest.mark.parametrize("text", ["a.b*c", "k<(int)4>(float *)", "[x]{2}|^$\\+?", "plain_name", "a b,c"])
def test_escaped_text_matches_itself_only(text: str) -> None:
    assert re.fullmatch(escape_regex(text), text)
    assert not re.fullmatch(escape_regex(text), text + "x")
    assert not re.search(r"\\[\w ,<>]", escape_regex(text))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("_Z13reduce_kernelPKfPfi", "reduce_kernel"),
        ("_ZN2ns5inner6kernelILi4EEEvPf", "kernel"),
        ("reduce_kernel(const float *, float *, int)", "reduce_kernel"),
        ("void ns::kernel<float, (int)4>(T1 *)", "kernel"),
        ("(anonymous namespace)::kernel(int)", "kernel"),
        ("add_kernel", "add_kernel"),
    ],
)
def test_function_name(name: str, function: str) -> None:
    assert function_name(name) == function


@pytest.mark.parametrize(
    "args",
    [
        "",
        "--section PmSampling --section WarpStateStats",
        "--warp-sampling-interval 0",
        "--warp-sampling-interval=0 --source-folders /src",
        "--replay-mode application",
        "--nvtx --nvtx-include range/",
        "--disable-extra-suffixes",
        "--devices 0",
    ],
)
def test_extra_args_that_are_fine(args: str) -> None:
    assert check_extra_args(shlex.split(args)) == ""


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("--set full", "--ncu-set"),
        ("--set=full", "--ncu-set"),
        ("--metrics a,b", "--ncu-metrics"),
        ("--metr a", "--ncu-metrics"),
        ("--nvtx -o out", "--export"),
        ("-oout", "--export"),
        ("-c1", "--launch-count"),
        ("-k foo", "--kernel"),
        ("--kernel-i ::foo:2", "--kernel"),
        ("--clock-control base", "--clock-control"),
        ("--clo=base", "--clock-control"),
        ("--kill no", "--kill"),
        ("--quiet", "--quiet"),
        ("--version", "--version"),
        ("-f", "--force-overwrite"),
        ("-- ./other", "'--'"),
        ("./other", "'./other'"),
        ("--nvtx true", "'true'"),
        ("--devices=0 1", "'1'"),
        ("--section A B", "'B'"),
    ],
)
def test_extra_args_that_clash_are_named(args: str, named: str) -> None:
    assert named in check_extra_args(shlex.split(args))


# ---------------------------------------------------------------------------------------------- diagnosing


class Runner:
    """Runs commands for a test and keeps them; its deadline replaces the one asked for when it is shorter."""

    def __init__(self, deadline: float = 60.0) -> None:
        self.deadline = deadline
        self.lines: list[list[str]] = []

    def __call__(self, argv: Sequence[str], env: Mapping[str, str], timeout: float, output: Path) -> ChildEnd:
        self.lines.append(list(argv))
        started = time.monotonic()
        timed_out = False
        with output.open("wb") as stream:
            child = subprocess.Popen(
                argv, stdout=stream, stderr=stream, env={**os.environ, **env}, start_new_session=True
            )
            try:
                code = child.wait(timeout=min(timeout, self.deadline))
            except subprocess.TimeoutExpired:
                timed_out = True
                os.killpg(child.pid, signal.SIGTERM)
                code = child.wait(timeout=30)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        return ChildEnd(code, timed_out, time.monotonic() - started, output.read_text()[-4000:])


def own_copy(folder: Path) -> str:
    """A starter of the fake at a path of its own, for its answers are remembered by path."""
    return str(executable(folder / "ncu", f'#!/bin/sh\nexec {shlex.quote(FAKE)} "$@"\n'))


def diagnose(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str = "ok",
    wanted: Sequence[Wanted] = (REDUCE,),
    program: Sequence[str] = PROGRAM,
    runner: Runner | None = None,
    settings: NcuSettings | None = None,
) -> DiagnosisOutcome:
    monkeypatch.setenv("FAKE_NCU", mode)
    settings = settings or NcuSettings(path=FAKE)
    diagnoser = NcuDiagnoser(settings)
    return diagnoser.diagnose(
        program, wanted, tmp_path / "out", runner or Runner(), lambda _text, _done: None
    )


def test_good_diagnosis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner()
    outcome = diagnose(tmp_path, monkeypatch, runner=runner)
    assert (outcome.status, outcome.message, outcome.fix) == ("ok", "", "")
    assert outcome.report is not None
    assert [kernel.function for kernel in outcome.report.kernels] == ["reduce_kernel"]
    assert Path(outcome.report.path).is_file()
    assert outcome.passes == 38
    assert "--set=full" in runner.lines[0]
    assert "--cache-control=all" in runner.lines[0]
    assert "--import-source=yes" in runner.lines[0]


def test_set_and_metrics_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = NcuSettings(path=FAKE, set="basic", metrics=("a.sum", "b.avg"))
    runner = Runner()
    outcome = diagnose(tmp_path, monkeypatch, runner=runner, settings=settings)
    assert outcome.passes == 10
    assert "--metrics=a.sum,b.avg" in runner.lines[0]


@pytest.mark.parametrize(
    ("mode", "status"),
    [
        ("permission", "permission"),
        ("busy", "busy"),
        ("driver", "driver"),
        ("unsupported", "unsupported_gpu"),
        ("lock", "busy"),
        ("no-kernels", "no_kernels"),
        ("no-kernels-matched", "no_kernels"),
        ("illegal-access", "app_failed"),
        ("garbage-report", "report_bad"),
        ("truncated-report", "report_bad"),
        ("no-report", "ncu_failed"),
    ],
)
def test_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, status: str) -> None:
    outcome = diagnose(tmp_path, monkeypatch, mode)
    assert outcome.status == status
    assert outcome.report is None
    assert outcome.message
    assert outcome.fix


@pytest.mark.parametrize("mode", ["hang", "silent"])
def test_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    outcome = diagnose(tmp_path, monkeypatch, mode, runner=Runner(deadline=1.0))
    assert outcome.status == {"hang": "timeout", "silent": "busy"}[mode]
    assert outcome.fix


def test_old_ncu_still_diagnoses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = NcuSettings(path=own_copy(tmp_path / "bin"))
    assert diagnose(tmp_path, monkeypatch, "old", settings=settings).status == "ok"


def test_available_kernels_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = diagnose(tmp_path, monkeypatch, wanted=[MATMUL])
    assert outcome.status == "no_kernels"
    assert outcome.available_kernels == ("reduce_kernel",)


def test_missing_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = diagnose(tmp_path, monkeypatch, program=["./not-built"])
    assert outcome.status == "executable_missing"


def test_missing_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = diagnose(tmp_path, monkeypatch, settings=NcuSettings(path=str(tmp_path / "nowhere")))
    assert (outcome.status, outcome.report) == ("ncu_missing", None)
    assert outcome.fix


def test_refused_option_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = NcuSettings(path=FAKE, args="--no-such-thing 1")
    outcome = diagnose(tmp_path, monkeypatch, settings=settings)
    assert outcome.status == "bad_option"
    assert "--no-such-thing" in outcome.log


def test_old_report_is_never_read_as_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: Path
) -> None:
    (tmp_path / "out").mkdir()
    shutil.copy(reports / "cu_reduce-baseline.ncu-rep", tmp_path / "out" / "diagnosis-0.ncu-rep")
    outcome = diagnose(tmp_path, monkeypatch, "no-kernels")
    assert (outcome.status, outcome.report) == ("no_kernels", None)


def test_report_of_another_kernel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: Path
) -> None:
    class Swapping(Runner):
        def __call__(
            self, argv: Sequence[str], env: Mapping[str, str], timeout: float, output: Path
        ) -> ChildEnd:
            end = super().__call__(argv, env, timeout, output)
            shutil.copy(reports / "matmul-naive.ncu-rep", argv[list(argv).index("-o") + 1])
            return end

    outcome = diagnose(tmp_path, monkeypatch, runner=Swapping())
    assert (outcome.status, outcome.report) == ("report_bad", None)


def test_some_of_several_launches_is_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner()
    outcome = diagnose(tmp_path, monkeypatch, wanted=[MATMUL, REDUCE], runner=runner)
    assert outcome.status == "partial"
    assert outcome.report is not None
    assert [kernel.function for kernel in outcome.report.kernels] == ["reduce_kernel"]
    assert outcome.message
    assert len(runner.lines) == 2


def test_hopeless_failure_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner()
    outcome = diagnose(tmp_path, monkeypatch, "permission", wanted=[REDUCE, MATMUL], runner=runner)
    assert outcome.status == "permission"
    assert len(runner.lines) == 1


def test_nothing_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnose(tmp_path, monkeypatch, wanted=[]).status == "no_kernels"


def test_progress_names_the_kernel_and_ends_at_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "ok")
    told: list[tuple[str, float]] = []
    diagnoser = NcuDiagnoser(NcuSettings(path=FAKE, set="basic"))
    diagnoser.diagnose(
        PROGRAM, [REDUCE, REDUCE], tmp_path / "out", Runner(), lambda text, done: told.append((text, done))
    )
    assert [done for _text, done in told] == [0.0, 0.5, 1.0]
    assert "reduce_kernel" in told[0][0]
    assert "20 passes" in told[-1][0]
