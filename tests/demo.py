"""The demonstration behind `make demo`: a whole session on a C++ program, on any machine, in a temporary repository.

    python -m tests.demo [--keep]

Exit code 0 only when the session made the program faster. The model's part is played by `ModelServer`, a fake; the
program, its builds, its times, its repository and the loop are real.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.doubles.model_server import ModelServer
from tests.engine.lab import BUILD, PROFILE, RUN, Lab, edit

DEADLINE = 120.0
"""Seconds the session may take; it needs less than twenty on two cores."""
GRACE = 20.0
"""Seconds it gets to put the tree back once it is told to end."""
SOURCE = "sum.cpp"

# Pieces of tests/projects/cpp_sum/sum.cpp, and what the played model puts in their place.
COLUMNS = """    for (int r = 0; r < rows; ++r) out[r] = 0.0f;
    for (int c = 0; c < cols; ++c)
        for (int r = 0; r < rows; ++r) out[r] += in[static_cast<long>(r) * cols + c];
"""
HALF = COLUMNS.replace("c < cols;", "c < cols / 2;")
ROWS = """    for (int r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int c = 0; c < cols; ++c) sum += in[static_cast<long>(r) * cols + c];
        out[r] = sum;
    }
"""
BACKWARDS = ROWS.replace("int c = 0; c < cols; ++c", "int c = cols - 1; c >= 0; --c")

CONFIG = [
    'build_cmd = "make"',
    'profiler = "stopwatch"',
    'allowed_edit_paths = ["sum.cpp"]',
    "[stopwatch]",
    r"pattern = 'time_ms=([0-9.]+)'",
]


def attempt(idea: str, before: str, after: str, summary: str) -> list[dict[str, Any]]:
    """One round of the played model: an edit, a build, a run, the verdict, and its last words."""
    return [
        {"text": idea, "calls": [edit(before, after, SOURCE), BUILD]},
        {"calls": [RUN, PROFILE]},
        {"text": summary},
    ]


SCENARIO = [
    attempt("Every second column may be enough.", COLUMNS, HALF, "Half the work, but not the same sums."),
    attempt(
        "The inner loop jumps a whole row at each step. Row by row it reads neighbours.",
        COLUMNS,
        ROWS,
        "Rows are walked in order: every cache line is used whole.",
    ),
    attempt(
        "Counting down may save a comparison.",
        ROWS,
        BACKWARDS,
        "The direction makes no difference: the additions wait for each other.",
    ),
]
BEFORE = """\
What is real here: git, make, {cxx}, the program tests/projects/cpp_sum, its check of its own result, the stopwatch on
the time it prints, the judge, the commits. No GPU is used and none is imitated.
What is played: the model. A server on 127.0.0.1 answers from a script in tests/demo.py: a wrong result, a real gain,
then an idea that brings nothing. Nothing leaves this machine.
"""
AFTER = """\
What next:
  make demo ARGS=--keep                    the same, and the repository is kept to look around in
  make test                                all checks and tests
  . {venv}/bin/activate
  tachyon evolve --help                    every option; README.md has a quick start for CUDA
"""


def main() -> int:
    """Play the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="demo", description="A session on a C++ program, without GPU and model."
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the temporary repository and say where it is"
    )
    keep = parser.parse_args().keep
    cxx = compiler()
    missing = [tool for tool in ("git", "make") if shutil.which(tool) is None] + (
        [] if cxx else ["a C++ compiler"]
    )
    if missing:
        say(
            f"The demonstration needs {', '.join(missing)}: install it with your package manager and start again."
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="tachyon-demo-"))
    try:
        lab = Lab(folder, "cpp_sum", real_gpu=True)
        lab.config = CONFIG
        lab.write_config()
        code = play(lab, cxx)
        if keep:
            say(f"Kept: {lab.root}  (try there: git log -p, tachyon sessions, tachyon export)")
        return code
    finally:
        if not keep:
            shutil.rmtree(folder)


def compiler() -> str:
    """The command of a C++ compiler that is installed; empty when there is none."""
    wanted = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    return next((name for name in wanted if name.strip() and shutil.which(name.split()[0])), "")


def play(lab: Lab, cxx: str) -> int:
    """The session in the laboratory's repository; 0 when it improved the program."""
    command = ["evolve", "./app", "--plain", "--max-iterations", str(len(SCENARIO))]
    say(BEFORE.format(cxx=cxx))
    say(f"$ tachyon {' '.join(command)}")
    with ModelServer(SCENARIO) as server:
        code = run(
            [sys.executable, "-m", "tachyon_tui", *command],
            lab.root,
            environment({**lab.env, "CXX": cxx}, server.base_url),
        )
    if code != 0:
        say(f"\nThe session did not make the program faster (exit code {code}). On a busy machine try again;")
        say("otherwise look at what it says above, and run: make test")
        return code
    say("\n$ git log --oneline --stat")
    say(lab.git("log", "--oneline", "--stat"))
    say("\n$ git status --porcelain --untracked-files=no")
    say(lab.git("status", "--porcelain", "--untracked-files=no") or "(nothing: the tree is as committed)")
    say("\n" + AFTER.format(venv=os.path.relpath(sys.prefix)))
    return 0


def environment(lab: Mapping[str, str], base_url: str) -> dict[str, str]:
    """The session's environment: the played model, and none of the user's own settings, keys or proxies."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TACHYON_")}
    return {
        **ours,
        **lab,
        "TACHYON_PROVIDER": "openai",
        "TACHYON_MODEL": "fake-model",
        "TACHYON_API_BASE": base_url,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }


def run(argv: list[str], cwd: Path, env: Mapping[str, str]) -> int:
    """Run the session with our own stdout and stderr; its exit code. Ctrl-C and the deadline end it in good order."""
    with subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, start_new_session=True) as child:
        try:
            return child.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            say(f"The session took longer than {DEADLINE:.0f} s and is ended.")
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """End the child and its group: TERM, then KILL."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while child.poll() is None and time.monotonic() < deadline:
            try:
                child.wait(1.0)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                continue
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)


def say(text: str) -> None:
    """Print, in order with what the session prints."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
