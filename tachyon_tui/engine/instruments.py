"""Which timer, which ncu and which sanitizer this machine has for a session."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil

from tachyon_tui.core.i18n import _
from tachyon_tui.core.settings import Settings
from tachyon_tui.engine.checks import Checks, PreflightFailed
from tachyon_tui.profilers.base import Timer
from tachyon_tui.profilers.kernel_timer import KernelTimer, RecorderUnavailable, build_recorder
from tachyon_tui.profilers.ncu import NcuDiagnoser, NcuMissing, check_extra_args
from tachyon_tui.profilers.ncu import tool as ncu_tool
from tachyon_tui.profilers.ncu_timer import NcuTimer
from tachyon_tui.profilers.stopwatch import Stopwatch
from tachyon_tui.workspace.sanitizer import sanitizer_command


def choose_instruments(settings: Settings, checks: Checks) -> tuple[Timer, NcuDiagnoser | None]:
    """The timer of the session and, where there is an ncu, the diagnoser. Raises `PreflightFailed`."""
    if settings.profiler == "stopwatch":
        return _stopwatch(settings.stopwatch.pattern, checks), None
    diagnoser = _ncu(settings, checks)
    if diagnoser is None and not has_driver():
        raise PreflightFailed(
            "timer",
            _("This machine has no NVIDIA driver: libcuda.so.1 was not found."),
            _("Start on a machine with a GPU, or time the program with `--profiler stopwatch`."),
        )
    try:
        recorder = build_recorder()
        timer = KernelTimer(recorder)
    except RecorderUnavailable as why:
        return time_with_ncu(settings, checks, why.reason, why.fix, have_ncu=diagnoser is not None), diagnoser
    checks.ok("timer", _("the kernel recorder is loaded into every run ({path})").format(path=recorder))
    return timer, diagnoser


def has_driver() -> bool:
    """Whether CUDA programs can find a driver here; a recorder named by TACHYON_RECORDER vouches for one."""
    if os.environ.get("TACHYON_RECORDER"):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _stopwatch(pattern: str, checks: Checks) -> Stopwatch:
    try:
        watch = Stopwatch(pattern)
    except ValueError as error:
        raise PreflightFailed("timer", str(error), _("Mend `[stopwatch] pattern`.")) from error
    checks.warn(
        "timer",
        _("a stopwatch times the program; a program can fool it"),
        _("Use the GPU's own records where there is a GPU: `--profiler gpu`."),
    )
    return watch


def _ncu(settings: Settings, checks: Checks) -> NcuDiagnoser | None:
    try:
        problem = check_extra_args(shlex.split(settings.ncu.args))
    except ValueError as error:
        problem = _("[ncu] args cannot be split into words ({why}).").format(why=error)
    if problem:
        raise PreflightFailed("ncu", problem, _("Correct `[ncu] args` in .tachyon/evolve.toml."))
    try:
        found = ncu_tool(settings.ncu)
    except NcuMissing as missing:
        checks.warn("ncu", missing.message, missing.fix)
        return None
    checks.ok("ncu", f"{'.'.join(map(str, found.version)) or '?'} ({found.program})")
    return NcuDiagnoser(settings.ncu)


def time_with_ncu(settings: Settings, checks: Checks, reason: str, fix: str, *, have_ncu: bool) -> NcuTimer:
    """ncu as the timer, because of ``reason`` with its ``fix``. Raises `PreflightFailed` without an ncu."""
    if not have_ncu:
        raise PreflightFailed(
            "timer", _("Nothing can time the GPU: {why}").format(why=reason), f"{fix} {stopwatch_advice()}"
        )
    checks.warn("timer", _("ncu times the runs, because the recorder cannot: {why}").format(why=reason), fix)
    return NcuTimer(settings.ncu)


def stopwatch_advice() -> str:
    """How to go on where nothing can time the GPU."""
    return _(
        "Or time the whole program: `--profiler stopwatch`; where it prints its own time, with "
        "`[stopwatch] pattern = 'time: ([0-9.]+) ms'` in .tachyon/evolve.toml."
    )


def check_sanitizer(settings: Settings) -> None:
    """A sanitizer that was asked for must be there. Raises `PreflightFailed`."""
    if settings.verify.sanitizer == "off":
        return
    program = sanitizer_command("memcheck", [])[0]
    if shutil.which(program) is None:
        raise PreflightFailed(
            "check",
            _('{program} was not found, and `[verify] sanitizer = "{when}"` asks for it.').format(
                program=program, when=settings.verify.sanitizer
            ),
            _('Put it on PATH (it comes with the CUDA toolkit), or set `[verify] sanitizer = "off"`.'),
        )
