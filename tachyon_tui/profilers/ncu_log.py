"""What ncu printed, classified.

The exit code alone proves nothing: ncu ends with 0 when it profiled no kernel, and with the program's own
code when all went well.

With `--log-file` ncu's lines go to that file, except for errors of its command line, which go to stdout.
Only lines that ncu marks (``==ERROR==``, ``==WARNING==``, ``==PROF==``) are trusted, for a program may print
anything. The texts are those of ncu 2025.3.1 and of NVIDIA's documentation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tachyon_tui.core.i18n import _, mark, translate

_MARK = re.compile(r"^.*?==(ERROR|WARNING|PROF)== ?(.*)$", re.MULTILINE)
_NAME = re.compile(r'==PROF== Profiling "(.*?)"')
_PASSES = re.compile(r"100% - (\d+) pass")
_CODE = re.compile(r"The application returned an error code \((-?\d+)\)")
_KERNEL = re.compile(r"^\d+\. (.+)$")
_NOTES = ("Note: ", "Unable to access the following", "Launching the workload is taking more time")
"""Beginnings of warnings that also stand in the log of a good run."""


class Classification(NamedTuple):
    """What a run of ncu came to."""

    status: str
    """As in `DiagnosisOutcome.status`."""
    message: str
    """What happened, empty when all is well."""
    fix: str
    """What to do next, empty when all is well."""
    details: str
    """The lines of ncu that this rests on."""


class _Rule(NamedTuple):
    pattern: str
    status: str
    message: str
    fix: str


# Order matters: many failures print "No kernels were profiled" or the program's error code as their last line.
_RULES = (
    _Rule(
        "ERR_NVGPUCTRPERM", "permission", mark("This user may not read the GPU's performance counters."), ""
    ),
    _Rule(
        "Profiling is not supported on device",
        "unsupported_gpu",
        mark("This ncu does not support this GPU."),
        mark("Install an Nsight Compute that lists the GPU (ncu --list-chips) and set [ncu] path to it."),
    ),
    _Rule(
        "Cuda driver is not compatible with Nsight Compute|Failed to load Nsight Compute CUDA modules",
        "driver",
        mark("This ncu does not fit the GPU driver."),
        mark("Set [ncu] path to an Nsight Compute of the driver's CUDA version, or update the driver."),
    ),
    _Rule(
        "Failed to (open|create|open/create) lock file",
        "busy",
        mark("ncu cannot use its lock file: it belongs to another user."),
        mark(
            "If no other ncu runs, remove the file that the log names, or set TMPDIR to a folder of your own."
        ),
    ),
    _Rule(
        "driver resource was unavailable",
        "busy",
        mark("Another program holds the GPU's performance counters."),
        mark("Stop other profilers (for DCGM: dcgmi profile --pause), then try again."),
    ),
    _Rule(
        "Failed to initialize the profiler|LibraryNotLoaded",
        "ncu_failed",
        mark("ncu cannot be loaded into this program."),
        mark(
            "Run outside a gVisor sandbox, and without another CUPTI client in the program; timed runs still work."
        ),
    ),
    _Rule(
        "unrecogni[sz]ed option|Failed to parse options|[Oo]ption '.*' (is|cannot)"
        "|No metrics to collect found in sections|Failed to find metric",
        "bad_option",
        mark("ncu refused its command line."),
        mark("Correct --ncu-args, --ncu-metrics or --ncu-set; ncu --help lists what this version knows."),
    ),
    _Rule(
        "already exists. Use '-f'",
        "report_exists",
        mark("ncu did not overwrite an older report."),
        mark("Remove the file that the log names."),
    ),
    _Rule(
        "does not exist or is not an executable|Missing executable to launch",
        "executable_missing",
        mark("ncu did not find the program."),
        mark("Check the path of the program, and that it was built."),
    ),
    _Rule(
        "Unable to write to file|cannot be used as the output log file",
        "ncu_failed",
        mark("ncu cannot write its files."),
        mark("Check free space and permissions of the session folder."),
    ),
)
_KERNEL_RULES = (
    _Rule(
        "LaunchFailed|An error was reported by the driver",
        "app_failed",
        mark("A kernel of the program failed while it was profiled."),
        mark("Run the program under compute-sanitizer: it names file and line."),
    ),
    _Rule(
        "Failed to save memory for replay|[Oo]ut of memory",
        "ncu_failed",
        mark("ncu ran out of memory while it saved the program's memory between passes."),
        mark('Use a smaller problem, --ncu-set basic, or --ncu-args "--replay-mode application".'),
    ),
    _Rule(
        "Connection error detected|Failed to connect|target process (has crashed|may have exited)",
        "app_failed",
        mark("The program ended or crashed while ncu was connected to it."),
        mark("Run the program alone; if it ends well, try a smaller --ncu-set."),
    ),
    _Rule(
        "Failed to (prepare kernel|profile)|Unknown Error on device|An error occurred while trying to profile",
        "ncu_failed",
        mark("ncu could not profile the kernel."),
        mark("Try --ncu-set basic; if that fails too, use an ncu of the CUDA version of the driver."),
    ),
)


def ncu_text(log: Path, stdout: str) -> str:
    """ncu's own lines: its log file, or stdout where it refused its command line before it opened that."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    return text or stdout


def classify(log: str, exit_code: int, timed_out: bool, report_ok: bool) -> Classification:
    """The verdict on one run of ncu.

    ``log`` is what `ncu_text` gives, ``report_ok`` says that the report was written by this run and holds
    the wanted kernel with a time. A usable report with something wrong beside it is ``partial``.
    """
    lines = [(kind, text) for kind, text in _MARK.findall(log)]
    marked = "\n".join(text for kind, text in lines)
    details = _details(lines, timed_out)

    def found(rule: _Rule) -> Classification:
        fix = permission_fix() if rule.status == "permission" else translate(rule.fix)
        return Classification(rule.status, translate(rule.message), fix, details)

    for rule in _RULES:
        if re.search(rule.pattern, marked):
            return found(rule)
    trouble = next((rule for rule in _KERNEL_RULES if re.search(rule.pattern, marked)), None)
    if report_ok:
        return _with_report(log, exit_code, timed_out, trouble, details)
    if timed_out:
        return _timeout(log, details)
    if trouble is not None:
        return found(trouble)
    if "No kernels were profiled" in marked:
        return _no_kernels(log, details)
    code = program_exit_code(log)
    if code is not None:
        return Classification(
            "app_failed",
            _("The program ended with code {code} before its kernel was profiled.").format(code=code),
            _("Run the program alone: it must end with code 0."),
            details,
        )
    if "==PROF== Report:" in log:
        return Classification(
            "report_bad",
            _("ncu wrote a report that cannot be used."),
            _("Check free space on the disk, then profile again."),
            details,
        )
    return Classification(
        "ncu_failed",
        _("ncu ended with code {code} and wrote no report.").format(code=exit_code),
        _("Read ncu's log; run the same ncu command by hand."),
        details,
    )


def _with_report(
    log: str, exit_code: int, timed_out: bool, trouble: _Rule | None, details: str
) -> Classification:
    code = program_exit_code(log)
    if timed_out:
        return Classification(
            "partial",
            _("The kernel was profiled, but the program or a child that it left behind did not end in time."),
            _("Raise [ncu] timeout, or let the program end its children."),
            details,
        )
    if trouble is not None:
        return Classification("partial", translate(trouble.message), translate(trouble.fix), details)
    if code is not None or exit_code != 0:
        return Classification(
            "partial",
            _("The kernel was profiled, but the program ended with code {code}.").format(
                code=code or exit_code
            ),
            _("Run the program alone: it must end with code 0."),
            details,
        )
    return Classification("ok", "", "", "")


def _timeout(log: str, details: str) -> Classification:
    raise_limit = _("Raise [ncu] timeout, choose a smaller --ncu-set, or make the problem smaller.")
    if "Connected to process" not in log:
        return Classification(
            "busy",
            _("ncu did not reach the program in time: another ncu may hold this GPU."),
            _("Look for another ncu (pgrep -a ncu) and wait for it; else check that the program uses CUDA."),
            details,
        )
    names = _NAME.findall(log)
    if names and len(names) > len(_PASSES.findall(log)):
        message = _("The kernel {name} did not end under ncu in time.").format(name=names[-1])
        fix = _(
            "A kernel that waits for another needs one pass: "
            '--ncu-args "--replay-mode application"; else raise [ncu] timeout.'
        )
        return Classification("timeout", message, fix, details)
    return Classification("timeout", _("The program did not end under ncu in time."), raise_limit, details)


def _no_kernels(log: str, details: str) -> Classification:
    if available_kernels(log):
        fix = _("Other kernels ran; choose one of them with -k, or profile an earlier launch.")
        return Classification(
            "no_kernels", _("The wanted kernel launch did not happen under ncu."), fix, details
        )
    if "Connected to process" in log:
        fix = _("Check that the kernel is launched with these arguments, and not from a forked child.")
    else:
        fix = _("Check that the program uses the GPU: run it alone and look at its output.")
    return Classification("no_kernels", _("No kernel was launched under ncu."), fix, details)


def _details(lines: list[tuple[str, str]], timed_out: bool) -> str:
    kept = [
        f"=={kind}== {text}"
        for kind, text in lines
        if kind != "PROF" and not text.startswith(_NOTES) and text
    ]
    if timed_out:
        kept += [f"=={kind}== {text}" for kind, text in lines if kind == "PROF"][-1:]
    return "\n".join(kept[-20:])


def program_exit_code(log: str) -> int | None:
    """The program's own exit code where ncu reported one that is not 0."""
    codes = _CODE.findall(log)
    return int(codes[-1]) if codes else None


def available_kernels(log: str) -> tuple[str, ...]:
    """The kernels that ran, which ncu lists when none of them was wanted."""
    _before, _mark, after = log.partition("Available Kernels:\n")
    names = []
    for line in after.splitlines():
        match = _KERNEL.match(line)
        if match is None:
            break
        names.append(match[1])
    return tuple(names)


def passes(log: str) -> int:
    """Passes over all kernels of the run; a warning may stand in the middle of ncu's progress line."""
    return sum(int(count) for count in _PASSES.findall(log))


def permission_fix(root: Path = Path("/")) -> str:
    """How to allow the performance counters on this machine: under WSL, in a container, or in the driver's options.

    NVIDIA, "ERR_NVGPUCTRPERM: Permission issue with Performance Counters".
    """
    try:
        kernel = (root / "proc" / "version").read_text(encoding="utf-8", errors="replace").lower()
    except OSError:
        kernel = ""
    if "microsoft" in kernel:
        return _(
            "In Windows: NVIDIA Control Panel, Desktop, Enable Developer Settings; "
            "then Manage GPU Performance Counters, Allow access to all users."
        )
    driver = _(
        "As root, write 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' to "
        "/etc/modprobe.d/nvidia-profiling.conf and reboot, or run as root."
    )
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        return _("Start the container with --cap-add=SYS_ADMIN; or on its host: {driver}").format(
            driver=driver
        )
    return driver
