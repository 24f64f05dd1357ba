#!/usr/bin/env python3
"""A FAKE of NVIDIA's ncu 2025.3.1 for machines without a GPU. It measures nothing.

It takes the options that Tachyon uses, really runs the program, writes the log lines that the real ncu was
recorded to write (tests/data/ncu-logs), and produces a report by copying one that was recorded (tests/data/reports).

FAKE_NCU chooses the behaviour:

ok                 profiles (the default)
permission, busy, driver, unsupported, lock
                   the named failure
no-kernels         the program launches no kernel
no-kernels-matched the wanted kernel is not launched
hang               the kernel never ends; ends on SIGTERM only
silent             waits for another ncu without a word; ends on SIGTERM only
app-exit-1         the program ends with 1 after its kernel
illegal-access     the kernel faults and no report is written
garbage-report, truncated-report, no-report
                   the report cannot be used
old                version 2020.1.0, lacks --null-stdin, --config-file, --rename-kernels, --kernel-name-base

FAKE_NCU_REPORT names the recorded report, without suffix (default cu_reduce-baseline). A launch to skip to is
not looked for: every kernel is launched often enough.
"""

from __future__ import annotations

import lzma
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"
REDUCE = ("_Z13reduce_kernelPKfPfi", "reduce_kernel", "reduce_kernel(const float *, float *, int)")
REDUCE4 = (
    "_Z13reduce_kernelPK6float4Pfii",
    "reduce_kernel",
    "reduce_kernel(const float4 *, float *, int, int)",
)
MATMUL = (
    "_Z13matmul_kernelPKfS0_Pfiii",
    "matmul_kernel",
    "matmul_kernel(const float *, const float *, float *, int, int, int)",
)
SCALE = ("_Z13scale_inplacePfmf", "scale_inplace", "scale_inplace(float *, unsigned long, float)")
TRANSPOSE = (
    "_Z15transpose_naivePKfPfii",
    "transpose_naive",
    "transpose_naive(const float *, float *, int, int)",
)
KERNELS = {
    "cu_reduce-baseline": [REDUCE],
    "cu_reduce-shared-tree": [REDUCE],
    "cu_reduce-float4": [REDUCE4],
    "cu_reduce-flat-named-sections": [REDUCE4],
    "cu_reduce-flat-no-lineinfo": [REDUCE4],
    "cu_reduce-flat-set-basic": [REDUCE4],
    "matmul-naive": [MATMUL],
    "transpose-time-only-6-launches": [SCALE, TRANSPOSE],
}
"""Mangled, function and demangled names of the kernels in each recorded report."""

VALUE_OPTIONS = {
    "--config-file", "--target-processes", "--set", "--section", "--metrics", "--import-source",
    "--source-folders", "--cache-control", "--clock-control", "--kernel-name", "--kernel-name-base",
    "--rename-kernels", "--launch-count", "--launch-skip", "--kill", "--log-file", "--export",
    "--replay-mode", "--warp-sampling-interval", "--nvtx-include", "--apply-rules", "--filter-mode",
    "--kernel-id", "--page", "--import",
}  # fmt: skip
FLAGS = {"--force-overwrite", "--null-stdin", "--nvtx", "--csv", "--verbose", "--quiet"}
ANSWERS = {"--help", "--version", "--list-sets"}
SHORT = {
    "-o": "--export", "-f": "--force-overwrite", "-k": "--kernel-name", "-c": "--launch-count", "-s": "--launch-skip",
    "-i": "--import", "-h": "--help", "-v": "--version",
}  # fmt: skip
REPEATABLE = {"--section", "--nvtx-include", "--force-overwrite"}
LATE = {"--null-stdin", "--config-file", "--rename-kernels", "--kernel-name-base"}
CLOCKS = {"base", "none", "reset"}
PASSES = {"basic": 10, "detailed": 20, "full": 38}

FAILURES = {
    "permission": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0.",
    "busy": "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like "
    "DCGM) is concurrently collecting profiling data.",
    "driver": "==ERROR== Cuda driver is not compatible with Nsight Compute.",
    "unsupported": "==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer --list-chips "
    "option.",
    "lock": "==ERROR== Failed to open/create lock file /tmp/nvidia/nsight_compute/lock.",
}

Options = dict[str, str]


def say(line: str) -> int:
    """An error of the command line: on stdout, as the real one does, never in the log file."""
    print(line)
    return 1


def parse(argv: list[str], known: set[str]) -> tuple[Options, list[str]] | str:
    """Options and program, or the error line."""
    found: Options = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return found, words
        if not word.startswith("-"):
            return found, [word, *words]
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            name, value = SHORT.get(word[:2], ""), word[2:]
            equals = value
        matches = [name] if name in known else [one for one in known if name and one.startswith(name)]
        if len(matches) != 1:
            return f"==ERROR== unrecognised option '{word}'. Use --help for further details."
        name = matches[0]
        if name in found and name not in REPEATABLE:
            return f"==ERROR== option '{name}' cannot be specified more than once. Use --help for further details."
        if name in VALUE_OPTIONS and not equals:
            if not words:
                return f"==ERROR== the required argument for option '{name}' is missing."
            value = words.pop(0)
        found[name] = value
    return found, []


def recorded(name: str) -> list[str]:
    """A recorded log without the recorded exit code and the tables that ncu prints when it writes no report."""
    lines = (DATA / "ncu-logs" / f"{name}.txt").read_text().splitlines()
    table = next((i for i, line in enumerate(lines) if re.match(r"\[\d+\]", line)), len(lines))
    return [line for line in lines[:table] if not re.fullmatch(r"(rc=)?\d+", line)]


def wanted(options: Options, kernels: list[tuple[str, str, str]]) -> tuple[str, ...] | None:
    """The first kernel that the filter lets through."""
    pattern = options.get("--kernel-name")
    if pattern is None:
        return kernels[0]
    base = {"mangled": 0, "function": 1, "demangled": 2}[options.get("--kernel-name-base", "function")]
    for kernel in kernels:
        name = kernel[base]
        if pattern.startswith("regex:"):
            if re.search(pattern.removeprefix("regex:"), name):
                return kernel
        elif pattern == name:
            return kernel
    return None


def wait_for_term(log: Path, lines: list[str]) -> int:
    """Stay until SIGTERM, as an ncu whose kernel never ends."""

    def ended(_signal: int, _frame: object) -> None:
        with log.open("a") as stream:
            stream.write("==PROF== Trying to shutdown target application\n")
        sys.exit(1)

    signal.signal(signal.SIGTERM, ended)
    log.write_text("".join(f"{line}\n" for line in lines))
    while True:
        signal.pause()


def write_report(path: Path, mode: str, name: str) -> None:
    content = lzma.decompress((DATA / "reports" / f"{name}.ncu-rep.xz").read_bytes())
    if mode == "garbage-report":
        content = b"not a report\n"
    elif mode == "truncated-report":
        content = content[: len(content) // 2]
    path.write_bytes(content)


def main(argv: list[str]) -> int:
    mode = os.environ.get("FAKE_NCU", "ok")
    name = os.environ.get("FAKE_NCU_REPORT", "cu_reduce-baseline").removesuffix(".ncu-rep")
    known = VALUE_OPTIONS | FLAGS | ANSWERS
    if mode == "old":
        known -= LATE
    parsed = parse(argv, known)
    if isinstance(parsed, str):
        return say(parsed)
    options, program = parsed
    if "--version" in options:
        number = "2020.1.0.0" if mode == "old" else "2025.3.1.0"
        print(f"NVIDIA (R) Nsight Compute Command Line Profiler\nVersion {number} (build 0) (fake)")
        return 0
    if "--help" in options:
        print("usage: ncu [options] [program] [program-arguments]")
        print("".join(f"  {one}{' arg' if one in VALUE_OPTIONS else ''}\n" for one in sorted(known)))
        return 0
    if "--list-sets" in options:
        print("Identifier Enabled Estimated Metrics\nbasic yes 213\ndetailed no 906\nfull no 7794")
        return 0
    if options.get("--clock-control", "base") not in CLOCKS:
        return say(
            "==ERROR== the argument for option '--clock-control' is invalid. Use --help for further details."
        )
    if not program:
        return say("==ERROR== Missing executable to launch.")
    report = Path(options.get("--export", "unnamed"))
    report = report if report.suffix == ".ncu-rep" else report.with_name(report.name + ".ncu-rep")
    if report.exists() and "--force-overwrite" not in options:
        return say(f"==ERROR== File {report.name} already exists. Use '-f' for overwriting the file.")
    log = Path(options.get("--log-file", os.devnull))
    if not log.parent.is_dir():
        return say(f"==ERROR== '{log}' cannot be used as the output log file")
    return profile(mode, name, options, program, report, log)


def profile(mode: str, name: str, options: Options, program: list[str], report: Path, log: Path) -> int:
    if mode == "silent":
        return wait_for_term(log, [])
    quiet = subprocess.DEVNULL if options.get("--kill") in {"yes", "on", "1"} else None
    try:
        child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=quiet, stderr=quiet)
    except OSError:
        return say(
            f"==ERROR== '{program[0]}' does not exist or is not an executable. Please make sure to specify the "
            f"absolute path to '{program[0]}' if the executable is not in the local directory."
        )
    lines = [f"==PROF== Connected to process {child.pid} ({program[0]})"]
    if mode == "hang":
        lines.append(f'==PROF== Profiling "{KERNELS[name][0][2]}" - 0: 0%..')
        return wait_for_term(log, lines)
    code = child.wait()
    code = -code if code < 0 else code
    killed = quiet is not None
    kernel = wanted(options, KERNELS[name])
    writes = False
    if mode in FAILURES:
        lines += [FAILURES[mode], "==WARNING== No kernels were profiled."]
        code = 1 if mode == "permission" else code
    elif mode == "no-kernels":
        lines = recorded("no-kernels")
    elif mode == "no-kernels-matched" or kernel is None:
        lines += [f"==PROF== Disconnected from process {child.pid}", "==WARNING== No kernels were profiled."]
        lines += ["Available Kernels:", *(f"{i}. {one[1]}" for i, one in enumerate(KERNELS[name], 1))]
    elif mode == "illegal-access":
        lines, code = recorded("illegal-access"), 9
    else:
        writes = mode != "no-report"
        code = 1 if mode == "app-exit-1" else 0 if killed else code
        count = PASSES.get(options.get("--set", ""), 1)
        lines.append(
            f'==PROF== Profiling "{kernel[0]}": 0%....50%....100% - {count} pass{"es" if count > 1 else ""}'
        )
        lines.append(
            "==PROF== Trying to shutdown target application"
            if killed
            else f"==PROF== Disconnected from process {child.pid}"
        )
    if code and not any(line.startswith("==ERROR==") for line in lines):
        lines.append(f"==ERROR== The application returned an error code ({code}).")
    if writes:
        write_report(report, mode, name)
        lines.append(f"==PROF== Report: {report}")
    log.write_text("".join(f"{line}\n" for line in lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
