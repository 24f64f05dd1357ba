"""Children: output, deadlines, floods, and that nothing of them outlives the call or ourselves."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.workspace.processes import become_subreaper, process_info
from tachyon_tui.workspace.runner import ChildProblem, ChildResult, cap_log, run_child, split_command


@pytest.fixture(autouse=True, scope="module")
def _subreaper() -> None:
    become_subreaper()


def run(tmp_path: Path, script: str, **options: Any) -> ChildResult:
    options.setdefault("timeout", 30)
    options.setdefault("stdout", tmp_path / "logs" / "out.txt")
    return run_child(["/bin/sh", "-c", script], cwd=tmp_path, **options)


def alive(pid: int) -> bool:
    info = process_info(pid)
    return info is not None and info.state not in "ZX"


def pids(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


@pytest.mark.parametrize(
    ("script", "exit_code", "signal_name", "how"),
    [
        ("true", 0, "", "exit code 0"),
        ("exit 3", 3, "", "exit code 3"),
        ("kill -SEGV $$", 139, "SIGSEGV", "ended by SIGSEGV"),
        ("kill -36 $$", 164, "SIG36", "ended by SIG36"),
    ],
)
def test_how_a_child_ended(tmp_path: Path, script: str, exit_code: int, signal_name: str, how: str) -> None:
    result = run(tmp_path, script)
    assert (result.exit_code, result.signal, result.how()) == (exit_code, signal_name, how)
    assert result.ok == (exit_code == 0)


def test_output_goes_to_one_file_or_two(tmp_path: Path) -> None:
    script = "echo out; echo err >&2"
    both = run(tmp_path, script)
    assert (tmp_path / "logs/out.txt").read_text() == both.tail == "out\nerr\n"
    apart = run(tmp_path, script, stderr=tmp_path / "err.txt")
    assert (tmp_path / "logs/out.txt").read_text() == "out\n"
    assert (tmp_path / "err.txt").read_text() == "err\n"
    assert apart.tail == "out\nerr\n"


def test_input_is_empty_and_the_environment_can_gain_and_lose_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "x")
    result = run(tmp_path, 'cat; echo "[$ADDED][$SOME_SECRET]"', env={"ADDED": "1", "SOME_SECRET": None})
    assert result.tail == "[1][]\n"


def test_undecodable_output_is_kept_in_the_file_and_replaced_in_the_tail(tmp_path: Path) -> None:
    result = run(tmp_path, r"printf 'a\377b'")
    assert result.tail == "a�b"
    assert (tmp_path / "logs/out.txt").read_bytes() == b"a\xffb"


def test_two_million_lines_are_kept_whole_and_the_tail_is_short(tmp_path: Path) -> None:
    result = run(tmp_path, "seq 1 2000000")
    assert result.ok
    assert result.tail.endswith("1999999\n2000000\n")
    assert len(result.tail) == 64 * 1024
    assert (tmp_path / "logs/out.txt").stat().st_size == sum(len(str(i)) + 1 for i in range(1, 2000001))


@pytest.mark.parametrize(("limit", "too_much"), [(100_000, True), (None, False)])
def test_a_flood_ends_the_child_unless_it_is_allowed(
    tmp_path: Path, limit: int | None, too_much: bool
) -> None:
    result = run(tmp_path, "yes | head -c 3000000; echo end", max_output=limit)
    assert result.too_much_output == too_much
    assert result.ok != too_much
    endless = run(tmp_path, "yes", max_output=100_000)
    assert endless.too_much_output
    assert not endless.timed_out


def test_a_child_that_ignores_term_is_killed_at_its_deadline_with_its_children(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 300 & echo $$ $! > pids; while :; do sleep 1; done"
    result = run(tmp_path, script, timeout=0.3)
    assert result.timed_out
    assert not result.ok
    assert result.seconds < 10
    assert [alive(pid) for pid in pids(tmp_path / "pids")] == [False, False]


def test_a_child_that_obeys_term_may_clean_up(tmp_path: Path) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do :; done"
    result = run(tmp_path, script, timeout=0.5)
    assert result.timed_out
    assert result.exit_code == 0
    assert result.tail == "ready\nbye\n"


@pytest.mark.parametrize(
    "script",
    [
        "setsid sleep 300 & echo $! > pids",
        "(setsid sh -c 'sleep 300 & echo $$ $! > pids; wait' &) ; while [ ! -s pids ]; do :; done",
        "sleep 300 & echo $! > pids",
        "setsid env -i /bin/sh -c 'echo $$ > pids; sleep 300; true' & while [ ! -s pids ]; do :; done",
    ],
    ids=["setsid", "double fork with a child", "background job", "daemon with an empty environment"],
)
def test_what_a_child_leaves_behind_is_ended(tmp_path: Path, script: str) -> None:
    result = run(tmp_path, script)
    assert result.exit_code == 0
    left = pids(tmp_path / "pids")
    assert left
    assert not any(alive(pid) for pid in left)
    assert result.orphans_killed >= len(left)
    assert result.orphans_left == 0


def test_a_fork_bomb_of_depth_two_is_swept(tmp_path: Path) -> None:
    (tmp_path / "bomb.sh").write_text(
        "for i in 1 2 3 4 5; do setsid sh -c "
        "'for j in 1 2 3 4 5; do setsid sleep 300 & echo $! >> pids; done; wait' & done\n"
        "while [ $(wc -l < pids 2>/dev/null || echo 0) -lt 25 ]; do :; done"
    )
    result = run(tmp_path, "sh bomb.sh")
    assert len(pids(tmp_path / "pids")) == 25
    assert not any(alive(pid) for pid in pids(tmp_path / "pids"))
    assert result.orphans_killed >= 30


def test_no_zombies_are_left_to_us(tmp_path: Path) -> None:
    run(tmp_path, "setsid sh -c 'sleep 0.01' & setsid sleep 300 & true")
    names = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    mine = [info for name in names if (info := process_info(int(name)))]
    assert [p for p in mine if p.parent == os.getpid() and p.state == "Z"] == []


def test_a_sweep_spares_another_run_and_our_other_children(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    results = []
    other = threading.Thread(
        target=lambda: results.append(
            run(
                tmp_path,
                "setsid sh -c 'read x < go; echo done > done' & wait; echo end",
                stdout=tmp_path / "2.txt",
            )
        )
    )
    with subprocess.Popen(["sleep", "300"]) as own:
        other.start()
        with go.open("w") as gate:  # opens when the other run's child reads
            run(tmp_path, "setsid sleep 300 & true")
            gate.write("go\n")
        other.join()
        assert results[0].tail == "end\n"
        assert results[0].orphans_killed == 0
        assert (tmp_path / "done").exists()
        assert own.poll() is None
        own.kill()


class Stop(Exception):
    """What a check raises to end a run."""


def test_a_check_that_raises_ends_the_whole_group_first(tmp_path: Path) -> None:
    def check() -> None:
        if (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"):
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path, "sleep 300 & echo $$ $! > pids; wait", check=check)
    assert not any(alive(pid) for pid in pids(tmp_path / "pids"))


def test_an_interrupt_never_leaves_a_child(tmp_path: Path) -> None:
    def check() -> None:
        if (tmp_path / "pids").exists():
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "echo $$ > pids; exec sleep 300", check=check)
    assert not any(alive(pid) for pid in pids(tmp_path / "pids"))


def test_checks_come_ten_times_a_second_and_waiting_is_cheap(tmp_path: Path) -> None:
    times: list[float] = []
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = run(tmp_path, "sleep 1", check=lambda: times.append(time.monotonic()))
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert len(times) >= 10 * result.seconds - 1
    assert used < 0.1 * result.seconds  # a spinning wait would use all of it


def test_output_is_handed_on_while_it_comes(tmp_path: Path) -> None:
    seen: list[str] = []
    os.mkfifo(tmp_path / "go")

    def check() -> None:
        if "".join(seen) == "first é\n":
            (tmp_path / "go").write_text("x")
            seen.append("|")

    run(tmp_path, "echo 'first é'; read x < go; echo second", check=check, on_output=seen.append)
    assert "".join(seen) == "first é\n|second\n"


@pytest.mark.parametrize("argv", [["./missing"], ["no-such-program-anywhere"], ["."], [], ["a\0b"]])
def test_a_command_that_cannot_start_says_so(tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(ChildProblem) as caught:
        run_child(argv, cwd=tmp_path, timeout=5, stdout=tmp_path / "out.txt")
    assert caught.value.fix


ENGINE = """
import sys
from pathlib import Path
from tachyon_tui.workspace.runner import become_subreaper, run_child
become_subreaper()
folder = Path(sys.argv[1])
run_child(["/bin/sh", "-c", sys.argv[2]], cwd=folder, timeout=300, stdout=folder / "out.txt")
"""


def test_a_kill_9_of_ourselves_leaves_no_child(tmp_path: Path) -> None:
    script = "setsid sleep 300 & a=$!; sleep 300 & echo $$ $a $! > part; mv part pids; wait"
    engine = subprocess.Popen([sys.executable, "-c", ENGINE, str(tmp_path), script])
    wait_for((tmp_path / "pids").exists)
    engine.kill()
    engine.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids(tmp_path / "pids")))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("make -j8", ["make", "-j8"]),
        ("./build/my_app --size 4096 --name 'a b'", ["./build/my_app", "--size", "4096", "--name", "a b"]),
        ("cmake --build build && ctest", None),
        ("make 2>&1 | tee log", None),
        ("ARCH=sm_90 make", None),
        ("cd build", None),
        ("./app *.bin", None),
        ("./app $HOME", None),
        ("echo 'unbalanced", None),
        ("make # note", None),
        ("./app a=b", ["./app", "a=b"]),
    ],
)
def test_a_command_gets_a_shell_only_when_it_needs_one(text: str, argv: list[str] | None) -> None:
    assert split_command(text) == (argv if argv is not None else ["/bin/sh", "-c", text])


def test_an_empty_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        split_command("  ")


def test_a_command_line_with_a_shell_runs(tmp_path: Path) -> None:
    argv = split_command("echo one && echo two | tr a-z A-Z")
    assert run_child(argv, cwd=tmp_path, timeout=10, stdout=tmp_path / "o").tail == "one\nTWO\n"


def test_a_log_is_capped_to_head_and_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f"line {i}\n" for i in range(10_000)]
    log.write_text("".join(lines))
    size = log.stat().st_size
    assert cap_log(log, size) == 0
    left_out = cap_log(log, 2_000)
    kept = log.read_text().splitlines(keepends=True)
    note = next(i for i, line in enumerate(kept) if line == f"[{left_out} bytes left out]\n")
    assert kept[:note] == lines[:note]
    assert kept[note + 1 :] == lines[-(len(kept) - note - 1) :]
    assert sum(map(len, kept)) - len(kept[note]) + left_out == size
    assert log.stat().st_size < 2_100
