"""Runs the user's commands as children that cannot stall, outlive or flood us."""

from __future__ import annotations

import codecs
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tachyon_tui.core.i18n import _
from tachyon_tui.core.regular import open_regular
from tachyon_tui.workspace.problems import Problem
from tachyon_tui.workspace.processes import MARK, REGISTRY, Family, become_subreaper

__all__ = ["ChildProblem", "ChildResult", "become_subreaper", "cap_log", "run_child", "split_command"]

GRACE_SECONDS = 2.0
TAIL_BYTES = 64 * 1024
MAX_OUTPUT = 64 * 1024 * 1024
SLICE_SECONDS = 0.05
"""How long one wait lasts at most; `check` and the size of the output are looked at in between."""

_SHELL_CHARACTERS = re.compile(r"[|&;<>()$`*?\[\]{}~#!\n]")
_ASSIGNMENT = re.compile(r"\s*[A-Za-z_]\w*=")
_SHELL_WORDS = re.compile(
    r"(?:\.|alias|cd|case|command|eval|exec|export|for|if|set|source|trap|ulimit|umask|unset|until|while)"
)


class ChildProblem(Problem):
    """The command cannot be started at all."""


@dataclass(frozen=True)
class ChildResult:
    """How a child ended."""

    argv: tuple[str, ...]
    exit_code: int
    """As a shell says it: 128 + number for a signal."""
    signal: str
    """Name of the signal that ended it, such as ``SIGSEGV``; empty when it exited by itself."""
    timed_out: bool
    too_much_output: bool
    seconds: float
    """Wall time from the start to the noticed end, in s."""
    tail: str
    """Last 64 KiB of its output; with a separate stderr, of stdout and then of stderr."""
    orphans_killed: int
    """Processes that it left behind and that were ended."""
    orphans_left: int = 0
    """Processes that it left behind and that could not be ended (stuck in the kernel, or another user's)."""

    @property
    def ok(self) -> bool:
        """True when it exited by itself with code 0 and within its limits."""
        return self.exit_code == 0 and not (self.timed_out or self.too_much_output)

    def how(self) -> str:
        """How it ended, in words."""
        if self.timed_out:
            return _("no end after {seconds:.0f} s").format(seconds=self.seconds)
        if self.too_much_output:
            return _("it printed too much")
        if self.signal:
            return _("ended by {signal}").format(signal=self.signal)
        return _("exit code {code}").format(code=self.exit_code)


def split_command(text: str) -> list[str]:
    """The argument list for a command as a user writes it.

    A text goes to ``/bin/sh -c`` when it holds a character that means something to a shell (anywhere, also
    inside quotes: the shell then does what was typed), starts with an assignment or a word only a shell knows,
    or has unbalanced quotes. Everything else is split as the shell would, and no shell stands between.
    Raises `ValueError` for an empty text.
    """
    if not text.strip():
        raise ValueError("empty command")
    shell = ["/bin/sh", "-c", text]
    if _SHELL_CHARACTERS.search(text) or _ASSIGNMENT.match(text):
        return shell
    try:
        words = shlex.split(text)
    except ValueError:
        return shell
    return shell if _SHELL_WORDS.fullmatch(words[0]) else words


def run_child(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str | None] | None = None,
    timeout: float,
    stdout: Path,
    stderr: Path | None = None,
    check: Callable[[], None] | None = None,
    on_output: Callable[[str], None] | None = None,
    max_output: int | None = MAX_OUTPUT,
) -> ChildResult:
    """Run ``argv`` to its end, for at most ``timeout`` s, in a session and process group of its own.

    Its input is /dev/null and its output goes straight to the files (``stderr`` None: the same file), so no
    reader can stall it. ``env`` adds variables to ours; a value of None removes one. ``check`` is called at least
    ten times a second and may raise: the whole group is ended first (TERM, 2 s, KILL) and the exception passes
    through. ``on_output`` gets new text of ``stdout`` as it comes; of a flood it gets the newest part. A child
    whose files outgrow ``max_output`` bytes together is ended. Whatever it left behind is ended too, so nothing
    of it runs when this returns. Raises `ChildProblem` when the command cannot be started.
    """
    return _Run(tuple(argv), cwd, env or {}, stdout, stderr).run(timeout, check, on_output, max_output)


class _Run:
    def __init__(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        env: Mapping[str, str | None],
        stdout: Path,
        stderr: Path | None,
    ) -> None:
        if not argv:
            raise ChildProblem(_("The command is empty."), _("Give the program to run."))
        self._argv = argv
        self._cwd = cwd
        self._files = [stdout] if stderr is None else [stdout, stderr]
        self._mark = uuid.uuid4().hex
        self._env = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
        self._env[MARK] = self._mark

    def run(
        self,
        timeout: float,
        check: Callable[[], None] | None,
        on_output: Callable[[str], None] | None,
        max_output: int | None,
    ) -> ChildResult:
        timed_out = flooded = False
        child = None
        counts = (0, 0)
        guard = _Guard(self._mark)
        try:
            child = _Child(self._start(), self._mark)
            guard.watch(child.pid)
            follow = _Follower(self._files[0], on_output) if on_output else None
            while not child.ended(min(SLICE_SECONDS, max(0.0, timeout - child.seconds()))):
                flooded = max_output is not None and self._size() > max_output
                timed_out = child.seconds() >= timeout
                if flooded or timed_out:
                    break
                if check:
                    check()
                if follow:
                    follow.read()
            seconds = child.seconds()
        finally:
            if child:
                counts = child.end()
            guard.dismiss()
        if follow:
            follow.read()
        code = child.exit_status
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"SIG{-code}"
        return ChildResult(
            argv=self._argv,
            exit_code=code if code >= 0 else 128 - code,
            signal=name if code < 0 else "",
            timed_out=timed_out,
            too_much_output=flooded or (max_output is not None and self._size() > max_output),
            seconds=seconds,
            tail="".join(_tail(path) for path in self._files),
            orphans_killed=counts[0],
            orphans_left=counts[1],
        )

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._files if path.exists())

    def _start(self) -> subprocess.Popen[bytes]:
        with ExitStack() as stack:
            for path in self._files:
                path.parent.mkdir(parents=True, exist_ok=True)
            out, *others = [stack.enter_context(path.open("wb")) for path in self._files]
            # The lock keeps the sweep of another run from seeing this child before it is registered.
            stack.enter_context(REGISTRY.lock)
            try:
                process = subprocess.Popen(
                    self._argv,
                    cwd=self._cwd,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=others[0] if others else subprocess.STDOUT,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise ChildProblem(
                    _("{program} cannot be started: {why}.").format(
                        program=self._argv[0], why=getattr(error, "strerror", None) or error
                    ),
                    _(
                        "Check that it exists, is executable and is named as seen from {cwd}; a build may be needed."
                    ).format(cwd=self._cwd),
                ) from error
            REGISTRY.own.add(process.pid)
            REGISTRY.runs.add(self._mark)
            return process


class _Guard:
    """The process that ends a run when we are gone (see `SCRIPT`)."""

    # It acts when its standard input ends, which happens only when our process is gone without having dismissed
    # it: so a kill -9 of ourselves leaves nothing running. PR_SET_PDEATHSIG would reach the direct child alone (a
    # `make` but not its compilers), is bound to the life of the spawning *thread*, and must be set between fork
    # and exec, which is unsafe in a process with threads.
    SCRIPT = (
        'read group; read _; kill -KILL -- "-$group" 2>/dev/null; for e in /proc/[0-9]*/environ; do '
        'grep -qsF "$1" "$e" && p=${e#/proc/} && kill -KILL "${p%/environ}"; done'
    )

    def __init__(self, mark: str) -> None:
        with REGISTRY.lock:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self.SCRIPT, "tachyon-guard", f"{MARK}={mark}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
            REGISTRY.own.add(self._process.pid)

    def watch(self, group: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{group}\n".encode())
        self._process.stdin.flush()

    def dismiss(self) -> None:
        self._process.kill()
        self._process.communicate()
        with REGISTRY.lock:
            REGISTRY.own.discard(self._process.pid)


class _Child:
    """A started process that is waited for without being reaped.

    Until it is reaped, as the last of its family, its number and with it the group's belong to nobody else.
    """

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self._started = time.perf_counter()
        self._process = process
        self._mark = mark
        self.pid = process.pid
        self._family = Family(process.pid, mark)
        try:
            self._fd = os.pidfd_open(process.pid)
        except OSError:
            self._fd = -1
        self._poll = select.poll()
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLIN)

    @property
    def exit_status(self) -> int:
        """As in `subprocess.Popen.returncode`; known after `end`."""
        return self._process.returncode

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def ended(self, seconds: float) -> bool:
        """True as soon as it has ended, False after ``seconds``."""
        if self._fd >= 0:
            # poll(2) takes whole milliseconds; a wait rounded down to 0 would spin.
            return bool(self._poll.poll(0 if seconds <= 0 else max(1, seconds * 1000)))
        # Before Linux 5.3 there is no pidfd.
        end, pause = time.monotonic() + seconds, 0.0005
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002)
        return True

    def end(self) -> tuple[int, int]:
        """End it and all its family; return how many others were killed and how many processes would not die."""
        if not self.ended(0):
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            self.ended(GRACE_SECONDS)
            self._signal(signal.SIGKILL)
            self.ended(GRACE_SECONDS)
        killed, left = self._family.sweep()
        if self.ended(0):
            self._process.wait()
        else:
            # Stuck in the kernel: it dies when the driver lets go of it, and is nobody's to wait for.
            self._process.returncode = -signal.SIGKILL
            left += 1
        if self._fd >= 0:
            os.close(self._fd)
        with REGISTRY.lock:
            REGISTRY.runs.discard(self._mark)
            REGISTRY.own.discard(self.pid)
        return killed, left

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return


class _Follower:
    """Hands on what was added to a file."""

    def __init__(self, path: Path, to: Callable[[str], None]) -> None:
        self._path = path
        self._to = to
        self._at = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> None:
        try:
            file = open_regular(self._path)
        except OSError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            if size <= self._at:
                return
            file.seek(max(self._at, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
            self._at = file.tell()
        text = self._decoder.decode(data)
        if text:
            self._to(text)


def _tail(path: Path) -> str:
    try:
        file = open_regular(path)
    except OSError:
        return ""  # the program removed or replaced it
    with file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode("utf-8", "replace")


def cap_log(path: Path, limit: int) -> int:
    """Shrink a finished log to its first and last ``limit`` / 2 bytes, whole lines where possible.

    A line between them says how many bytes were left out; return that number (0: it was small enough, or is gone).
    """
    try:
        file = open_regular(path)
    except OSError:
        return 0
    half = limit // 2
    with file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            return 0
        head = file.read(half)
        file.seek(size - half)
        tail = file.read()
    head = head[: head.rfind(b"\n") + 1] or head
    tail = tail[tail.find(b"\n") + 1 :] or tail
    left_out = size - len(head) - len(tail)
    note = _("[{count} bytes left out]").format(count=left_out)
    shorter = path.with_name(path.name + ".part")
    shorter.write_bytes(head + (b"" if head.endswith(b"\n") else b"\n") + note.encode() + b"\n" + tail)
    shutil.copymode(path, shorter)
    shorter.replace(path)
    return left_out
