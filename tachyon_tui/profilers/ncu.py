"""Runs ncu: finds it, learns its version and options, builds its command lines, and diagnoses wanted launches."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import KernelProfile, Report
from tachyon_tui.core.settings import NcuSettings
from tachyon_tui.profilers.base import ChildEnd, DiagnosisOutcome, Progress, RunChild, Wanted
from tachyon_tui.profilers.ncu_log import Classification, available_kernels, classify, ncu_text, passes
from tachyon_tui.profilers.reader import read_report_apart
from tachyon_tui.profilers.report import ReportError, install_dir, version_tuple

__all__ = [
    "NcuDiagnoser",
    "NcuMissing",
    "Tool",
    "check_extra_args",
    "classify",
    "escape_regex",
    "find_ncu",
    "tool",
]

ENVIRONMENT = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
"""Keeps ncu from copying its section files to the user's home, which fails where that is read-only."""
ASK_TIMEOUT_S = 30
HOPELESS = {
    "permission",
    "driver",
    "unsupported_gpu",
    "bad_option",
    "executable_missing",
    "ncu_missing",
    "busy",
}
"""After one of these the next launch would fail in the same way."""

VALUE_OPTIONS = {
    "set": "--ncu-set",
    "metrics": "--ncu-metrics",
    "export": "",
    "log-file": "",
    "kernel-name": "--kernel",
    "kernel-name-base": "",
    "kernel-id": "--kernel",
    "rename-kernels": "",
    "launch-skip": "",
    "launch-skip-before-match": "",
    "launch-count": "",
    "filter-mode": "",
    "kill": "",
    "import-source": "",
    "clock-control": "",
    "cache-control": "",
    "config-file": "",
    "config-file-path": "",
    "target-processes": "",
    "import": "--report",
    "page": "",
    "mode": "",
}
"""Options with a value that we set or that would defeat a run, and our own option for the same purpose."""
FLAG_OPTIONS = {
    "force-overwrite",
    "null-stdin",
    "quiet",
    "csv",
    "help",
    "version",
    "open-in-ui",
    "list-sets",
    "list-sections",
    "list-rules",
    "list-metrics",
    "list-chips",
    "query-metrics",
    "query-metrics-mode",
    "query-metrics-collection",
}
"""The same for options without a value."""
SHORT_OPTIONS = {
    "o": "export",
    "k": "kernel-name",
    "s": "launch-skip",
    "c": "launch-count",
    "i": "import",
    "f": "force-overwrite",
    "h": "help",
    "v": "version",
}
LONE_FLAGS = {
    "nvtx", "verbose", "forward-signals", "call-stack", "support-32bit", "section-folder-restore", "print-fp",
    "disable-extra-suffixes", "disable-profiler-start-stop", "print-rule-details", "print-metric-attribution",
}  # fmt: skip
"""Options that are free to use and take no value: a word after one of them would become the program."""


class NcuMissing(Exception):
    """ncu was not found or does not answer; ``fix`` says what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message} {fix}")
        self.message = message
        self.fix = fix


@dataclass(frozen=True)
class Tool:
    """An ncu that was found and asked."""

    program: str
    version: tuple[int, ...]
    """``(2025, 3, 1, 0)``; empty when it could not be read."""
    options: frozenset[str]
    """Long options that this version knows, with their dashes."""
    install: Path | None
    """Folder with NVIDIA's own reader of reports, None where there is none."""


def find_ncu(setting: str = "", env: Mapping[str, str] | None = None, root: Path = Path("/")) -> str:
    """Path of ncu: the setting alone if there is one; else NCU, NSIGHT_COMPUTE, PATH, CUDA_HOME, usual folders.

    :raises NcuMissing: there is none.
    """
    env = os.environ if env is None else env
    if setting:
        found = shutil.which(str(Path(setting).expanduser()), path=env.get("PATH"))
        if found is None:
            raise NcuMissing(
                _("There is no ncu at {path}.").format(path=setting), _("Correct [ncu] path in evolve.toml.")
            )
        return found
    for variable in ("NCU", "NSIGHT_COMPUTE"):
        named = env.get(variable, "")
        for candidate in (named, str(Path(named) / "ncu")):
            if named and (found := shutil.which(candidate, path=env.get("PATH"))):
                return found
    if found := shutil.which("ncu", path=env.get("PATH")):
        return found
    homes = [Path(env["CUDA_HOME"])] if env.get("CUDA_HOME") else []
    candidates = [home / "bin" / "ncu" for home in [*homes, root / "usr/local/cuda"]]
    newest = [
        *root.glob("opt/nvidia/nsight-compute/*/ncu"),
        *root.glob("usr/local/cuda*/nsight-compute-*/ncu"),
    ]
    newest.sort(
        key=lambda path: version_tuple(path.parent.name.removeprefix("nsight-compute-")), reverse=True
    )
    for path in [*candidates, *newest]:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise NcuMissing(
        _("ncu (Nsight Compute) was not found."),
        _("Install it with the CUDA toolkit, put it on PATH, or set [ncu] path in evolve.toml."),
    )


def tool(settings: NcuSettings) -> Tool:
    """The ncu of these settings, looked up anew each time; its answers are kept until the file changes.

    :raises NcuMissing: not found, or it does not start.
    """
    program = find_ncu(settings.path)
    return _ask(program, Path(program).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _ask(program: str, _changed: int) -> Tool:
    version = re.search(r"^Version (\d+(?:\.\d+)+)", _output(program, "--version"), re.MULTILINE)
    number = version_tuple(version[1]) if version else ()
    options = frozenset(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", _output(program, "--help")))
    return Tool(program, number, options, install_dir(program, number))


def _output(program: str, option: str) -> str:
    fix = _("Run it by hand, reinstall Nsight Compute, or set [ncu] path to another one.")
    try:
        child = subprocess.Popen(
            [program, option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        message = _("{ncu} cannot be started: {reason}.").format(ncu=program, reason=error.strerror or error)
        raise NcuMissing(message, fix) from error
    with child:
        try:
            return child.communicate(timeout=ASK_TIMEOUT_S)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired as error:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=2)
                os.killpg(child.pid, signal.SIGKILL)
            raise NcuMissing(_("{ncu} does not answer.").format(ncu=program), fix) from error


def escape_regex(text: str) -> str:
    """``text`` as a literal for ncu's ``regex:``, which refuses an escape that it does not need."""
    return re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text)


def check_extra_args(args: Sequence[str]) -> str:
    """Why the user's extra arguments cannot be used, or an empty text.

    ncu accepts ``--option value``, ``--option=value``, unique beginnings of an option, and ``-c1``; it
    refuses an option that is given twice, and takes the first word that is no option and no value for the
    program.
    """
    value_may_follow = False
    for arg in args:
        if arg == "--":
            return _("'--' in --ncu-args would end ncu's own options; leave it out.")
        if arg.startswith("--"):
            name, equals, _value = arg[2:].partition("=")
            clash = _clash(name)
            value_may_follow = not equals and name not in LONE_FLAGS
        elif re.match(r"-[A-Za-z]", arg):
            clash = SHORT_OPTIONS.get(arg[1])
            value_may_follow = len(arg) == 2
        elif value_may_follow:
            clash, value_may_follow = None, False
        else:
            return _("'{word}' in --ncu-args is no option; ncu would run it as the program.").format(word=arg)
        if clash is not None:
            return _refusal(arg, clash)
    return ""


def _clash(name: str) -> str | None:
    """The reserved option that ``name`` is or abbreviates."""
    reserved = sorted({*VALUE_OPTIONS, *FLAG_OPTIONS})
    if name in reserved:
        return name
    return next((option for option in reserved if option.startswith(name) and name not in LONE_FLAGS), None)


def _refusal(arg: str, option: str) -> str:
    instead = VALUE_OPTIONS.get(option, "")
    if instead:
        return _(
            "'{arg}' in --ncu-args clashes with ncu's --{option}, which {instead} sets; use {instead}."
        ).format(arg=arg, option=option, instead=instead)
    return _(
        "'{arg}' in --ncu-args clashes with ncu's --{option}, which Tachyon sets itself; leave it out."
    ).format(arg=arg, option=option)


def command(
    ncu: Tool, settings: NcuSettings, options: Iterable[str], report: Path, log: Path, argv: Sequence[str]
) -> list[str]:
    """A full ncu command line; ``options`` are ``--name=value`` or ``--name``; those that this ncu lacks are left
    out.

    Clocks are never locked: times under another clock do not compare, and a killed ncu would leave the lock
    behind.
    """
    ours = [
        "--config-file=off",
        "--target-processes=all",
        "--clock-control=none",
        "--null-stdin",
        *options,
    ]
    known = [option for option in ours if not ncu.options or option.partition("=")[0] in ncu.options]
    files = ["-f", "-o", str(report), "--log-file", str(log)]
    return [ncu.program, *known, *files, *shlex.split(settings.args), "--", *argv]


def function_name(name: str) -> str:
    """The function alone, without namespace, template arguments and parameters, of a mangled or demangled name."""
    if name.startswith("_Z"):
        rest, found = name[2:].lstrip("NKL"), ""
        while match := re.match(r"\d+", rest):
            end = match.end() + int(match[0])
            found, rest = rest[match.end() : end], rest[end:]
        return found or name
    plain = re.sub(
        r"^.*[\s:]", "", re.split(r"[<(]", name.replace("(anonymous namespace)", ""), maxsplit=1)[0]
    )
    return plain or name


def select(ncu: Tool, wanted: Wanted) -> list[str]:
    """Options that choose one launch by the full name, matched literally.

    A mangled name, or a plain C name, is matched as ``mangled``; a name with parameters as ``demangled``,
    which must be in ncu's own spelling (``const float *``, not ``float const*``): another one matches
    nothing rather than a wrong kernel.
    """
    name = wanted.mangled
    base = "mangled" if re.fullmatch(r"\w+", name) else "demangled"
    if ncu.options and "--kernel-name-base" not in ncu.options:
        base, name = "function", function_name(name)
    return [
        "--rename-kernels=off",
        f"--kernel-name-base={base}",
        f"--kernel-name=regex:^{escape_regex(name)}$",
        f"--launch-skip={wanted.index}",
        "--launch-count=1",
        "--kill=yes",
    ]


class NcuDiagnoser:
    """Profiles wanted launches, one run of ncu each, with the program ended right after the launch."""

    def __init__(self, settings: NcuSettings) -> None:
        self._settings = settings

    def diagnose(
        self, argv: Sequence[str], wanted: Sequence[Wanted], output: Path, run: RunChild, progress: Progress
    ) -> DiagnosisOutcome:
        """See `Diagnoser`. Reports are ``diagnosis-<n>.ncu-rep`` in ``output``; older ones are removed first."""
        output.mkdir(parents=True, exist_ok=True)
        outcomes = []
        for number, launch in enumerate(wanted):
            name = function_name(launch.mangled)
            progress(
                _("ncu profiles {kernel} ({number} of {count})").format(
                    kernel=name, number=number + 1, count=len(wanted)
                ),
                number / len(wanted),
            )
            outcomes.append(self._profile(argv, launch, output.resolve() / f"diagnosis-{number}", run))
            if outcomes[-1].status in HOPELESS:
                break
        done = _("ncu is done after {passes} passes").format(
            passes=sum(outcome.passes for outcome in outcomes)
        )
        progress(done, 1.0)
        return merge(outcomes, output)

    def _profile(self, argv: Sequence[str], launch: Wanted, stem: Path, run: RunChild) -> DiagnosisOutcome:
        report, log, out = (stem.with_suffix(suffix) for suffix in (".ncu-rep", ".log", ".out"))
        for old in (report, log, out):
            old.unlink(missing_ok=True)
        try:
            ncu = tool(self._settings)
        except NcuMissing as missing:
            return DiagnosisOutcome("ncu_missing", message=missing.message, fix=missing.fix)
        options = [
            f"--set={self._settings.set}",
            "--cache-control=all",
            "--import-source=yes",
            *select(ncu, launch),
        ]
        if self._settings.metrics:
            options.append(f"--metrics={','.join(self._settings.metrics)}")
        end = run(
            command(ncu, self._settings, options, report, log, argv), ENVIRONMENT, self._settings.timeout, out
        )
        return _outcome(ncu, launch, report, ncu_text(log, end.tail), end)


def _outcome(ncu: Tool, launch: Wanted, file: Path, text: str, end: ChildEnd) -> DiagnosisOutcome:
    """Judges one run by its log and by the contents of the report together."""
    report: Report | None = None
    problem: ReportError | None = None
    try:
        report = read_report_apart(file, ncu.install, ncu.version)
    except ReportError as error:
        problem = error
    kernel = next((one for one in report.kernels if _is(one, launch)), None) if report else None
    usable = kernel is not None and kernel.gpu_time_ms is not None
    verdict = classify(text, end.exit_code, end.timed_out, usable)
    if verdict.status == "report_bad":
        if problem is not None:
            verdict = verdict._replace(message=problem.message, fix=problem.fix)
        elif kernel is not None:
            verdict = Classification(
                "app_failed",
                _("The kernel {name} has no time: it failed while it was profiled.").format(name=kernel.name),
                _("Run the program under compute-sanitizer: it names file and line."),
                verdict.details,
            )
        else:
            verdict = verdict._replace(message=_("ncu profiled another kernel than the wanted one."))
    return DiagnosisOutcome(
        status=verdict.status,
        report=report if usable and verdict.status in {"ok", "partial"} else None,
        message=verdict.message,
        fix=verdict.fix,
        available_kernels=available_kernels(text),
        passes=passes(text),
        seconds=end.seconds,
        log=verdict.details,
    )


def _is(kernel: KernelProfile, launch: Wanted) -> bool:
    return launch.mangled in {kernel.mangled, kernel.name} or (
        kernel.function == function_name(launch.mangled) and not re.fullmatch(r"\w+", launch.mangled)
    )


def merge(outcomes: Sequence[DiagnosisOutcome], output: Path) -> DiagnosisOutcome:
    """One outcome: ``ok`` when all launches are, ``partial`` when some gave a report, else the first failure."""
    if not outcomes:
        return DiagnosisOutcome(
            "no_kernels", message=_("There is no kernel to profile."), fix=_("Choose kernels with -k.")
        )
    reports = [outcome.report for outcome in outcomes if outcome.report is not None]
    failed = next((outcome for outcome in outcomes if outcome.status != "ok"), None)
    report = None
    if reports:
        report = Report(
            path=reports[0].path if len(reports) == 1 else str(output),
            reader_version=reports[0].reader_version,
            kernels=tuple(kernel for one in reports for kernel in one.kernels),
            warnings=tuple(dict.fromkeys(warning for one in reports for warning in one.warnings)),
        )
    return DiagnosisOutcome(
        status="ok" if failed is None else "partial" if reports else failed.status,
        report=report,
        message=failed.message if failed else "",
        fix=failed.fix if failed else "",
        available_kernels=tuple(dict.fromkeys(name for one in outcomes for name in one.available_kernels)),
        passes=sum(outcome.passes for outcome in outcomes),
        seconds=sum(outcome.seconds for outcome in outcomes),
        log="\n".join(outcome.log for outcome in outcomes if outcome.log),
    )
