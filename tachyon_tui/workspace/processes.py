"""Finding and ending what escaped a child's process group: setsid, double forks, background jobs."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
MARK = "TACHYON_RUN"
"""Environment variable that all descendants of one run inherit; its value is unique to the run."""
SWEEP_SECONDS = 5.0


def become_subreaper() -> bool:
    """Make this process the parent of every orphan among its descendants (prctl(2)); False where Linux refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


class ProcessInfo(NamedTuple):
    """The fields of /proc/PID/stat that tell where a process belongs (proc(5))."""

    pid: int
    state: str
    parent: int
    session: int
    started: int
    """Clock ticks since boot."""


def process_info(pid: int) -> ProcessInfo | None:
    """The process, or None when it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessInfo(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def _processes() -> Iterator[ProcessInfo]:
    for name in os.listdir("/proc"):  # noqa: PTH208 -- a Path for each of thousands of entries is slow
        if name.isdigit():
            info = process_info(int(name))
            if info is not None:
                yield info


def _marks(pid: int) -> bytes:
    """The environment of a process; empty for a zombie and for another user's process."""
    return _read(f"/proc/{pid}/environ")


def _read(path: str) -> bytes:
    """A file of proc(5); empty when the process is gone or not ours. Every run reads one of every process."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- a Path costs as much again
            return file.readall()
    except OSError:
        return b""


class _Registry:
    """The runs of this process that have not ended, and the children it started itself."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runs: set[str] = set()
        self.own: set[int] = set()


REGISTRY = _Registry()


class Family:
    """The descendants of one run, wherever they went."""

    def __init__(self, leader: int, mark: str) -> None:
        self.leader = leader
        self._mark = f"{MARK}={mark}".encode()
        info = process_info(leader)
        self._since = info.started if info else 0

    def escaped(self) -> list[ProcessInfo]:
        """Every process of this run but its leader, zombies to be reaped included.

        A process belongs to the run when it is in the leader's session, carries the run's mark in its
        environment, or descends from such a process. One that dropped its environment is known by being an
        orphan that came to us in a session of its own while no other run was under way.
        """
        with REGISTRY.lock:
            me, my_session = os.getpid(), os.getsid(0)
            alone = len(REGISTRY.runs) <= 1
            young = [p for p in _processes() if p.started >= self._since and p.pid not in REGISTRY.own]
            found: dict[int, ProcessInfo] = {}
            for p in young:
                if p.pid in (me, self.leader):
                    continue
                environment = _marks(p.pid)
                orphan = (
                    alone
                    and p.parent == me
                    and p.session != my_session
                    and f"{MARK}=".encode() not in environment
                )
                if p.session == self.leader or self._mark in environment or orphan:
                    found[p.pid] = p
            grown = True
            while grown:
                more = [p for p in young if p.parent in found and p.pid not in found and p.pid != me]
                found.update((p.pid, p) for p in more)
                grown = bool(more)
            return list(found.values())

    def sweep(self) -> tuple[int, int]:
        """Kill and reap what is left of the run; return how many were killed and how many would not die."""
        killed: set[int] = set()
        deadline = time.monotonic() + SWEEP_SECONDS
        while True:
            left = self.escaped()
            alive = [p for p in left if p.state not in "ZX"]
            for p in alive:
                if _kill(p.pid):
                    killed.add(p.pid)
            for p in left:
                if p.parent == os.getpid():
                    _reap(p.pid)
            if not alive:
                return len(killed), 0
            if time.monotonic() > deadline:
                return len(killed), len(alive)
            time.sleep(0.002)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
