"""What the engine's process uses of one core while it waits: for a build, a run, ncu, the model, a person."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tachyon_tui.core.session import JournalReader, SessionPaths, append_command, list_sessions, read_owner
from tests.benchmarks.figure import Figure
from tests.engine.lab import FAKE_NCU, FASTER, Lab, turn

WAIT_PERCENT = 2.0
LOOK_SECONDS = 0.02
MARGIN = 0.15
"""Share of a wait that is left out at both ends."""
HOLD = """\
rm "{home}/wait-for-$1" 2>/dev/null || exit 0
begun=$(date +%s.%N)
sleep {seconds}
echo "$1 $begun $(date +%s.%N)" >>"{home}/waits"
"""
NCU = """\
#!/bin/sh
case "$*" in *" -o "*) sh "{home}/hold" ncu ;; esac
exec "{ncu}" "$@"
"""


class _Watch:
    """Follows a session in a thread: the processor time of its process, and a person's answers after a while."""

    def __init__(self, root: Path, seconds: float) -> None:
        self._root = root
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._due: list[tuple[float, Any]] = []
        self.looks: list[tuple[float, float]] = []
        """Time in s since the epoch, and processor time in s used by then."""
        self.waits: list[tuple[str, float, float]] = []
        """What was waited for, from and to."""

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            sessions = list_sessions(self._root)
            owner = read_owner(sessions[0].lock) if sessions else None
            if owner is not None:
                self._follow(sessions[0], process_clock(owner.pid))
                return

    def _follow(self, paths: SessionPaths, clock: Callable[[], float]) -> None:
        reader = JournalReader(paths)
        while not self._ended.wait(LOOK_SECONDS):
            now = time.time()
            try:
                self.looks.append((now, clock()))
            except OSError:
                return  # it has ended
            for event in reader.events():
                self._answer(paths, event)
            for at, command in [item for item in self._due if item[0] <= now]:
                self._due.remove((at, command))
                append_command(paths, command)

    def _answer(self, paths: SessionPaths, event: Any) -> None:
        if isinstance(event, e.ReviewRequested):
            self._wait_for("review", event.time, c.Accept(), c.Pause())
        elif isinstance(event, e.ControlChanged) and event.running == "paused":
            self._wait_for("pause", event.time, c.Continue())

    def _wait_for(self, what: str, since: float, *commands: Any) -> None:
        until = since + self._seconds
        self.waits.append((what, since, until))
        self._due += [(until, command) for command in commands]

    def percent(self, begun: float, ended: float) -> float:
        """Processor time between two moments, in percent of one core."""
        margin = (ended - begun) * MARGIN
        inside = [look for look in self.looks if begun + margin <= look[0] <= ended - margin]
        (first, before), (last, after) = inside[0], inside[-1]
        return (after - before) / (last - first) * 100


def process_clock(pid: int) -> Callable[[], float]:
    """A clock of the processor time that a process has used, all threads together (clock_getcpuclockid(3))."""
    clock = ctypes.c_int()
    wrong = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if wrong:
        raise OSError(wrong, os.strerror(wrong))
    return lambda: time.clock_gettime(clock.value)


def waiting(seconds: float = 4.0) -> list[Figure]:
    """One session that waits ``seconds`` for everything once."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        (lab.home / "hold").write_text(HOLD.format(home=lab.home, seconds=seconds), "utf-8")
        ncu = lab.home / "slow-ncu"
        ncu.write_text(NCU.format(home=lab.home, ncu=FAKE_NCU), "utf-8")
        ncu.chmod(0o755)
        lab.env["NCU"] = str(ncu)
        hold = f"sh {lab.home}/hold"
        lab.config = [f'build_cmd = "{hold} build; make"', f'run_cmd = "{hold} run; ./app"']
        scenario = [turn(FASTER), [{"text": "Nothing more."}]]
        scenario[0][0]["stall"] = seconds
        with _Watch(lab.root, seconds) as watch:

            def on_request(number: int) -> None:
                if number == 0:
                    now = time.time()
                    watch.waits.append(("model", now, now + seconds))
                    for name in ("build", "run", "ncu"):
                        (lab.home / f"wait-for-{name}").touch()
                    append_command(list_sessions(lab.root)[0], c.Review(on=True))

            done = lab.cli(
                "evolve",
                "--quiet",
                "--max-iterations",
                "2",
                "./app",
                scenario=scenario,
                on_request=on_request,
            )
        assert done.code == 0, done.stderr
        rows = [line.split() for line in (lab.home / "waits").read_text("ascii").splitlines()]
    waits = [*watch.waits, *((name, float(begun), float(ended)) for name, begun, ended in rows)]
    shares = {what: watch.percent(begun, ended) for what, begun, ended in waits}
    return [
        Figure(
            "waiting",
            max(shares.values()),
            WAIT_PERCENT,
            "% of one core",
            ", ".join(f"{what} {share:.2f} %" for what, share in sorted(shares.items()))
            + f", {seconds:g} s each",
        )
    ]
