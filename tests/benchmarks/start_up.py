"""How quickly the commands start that need neither model nor screen."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "tests" / "data" / "reports" / "matmul-naive.ncu-rep.xz"
HELP_SECONDS = 0.3
HEAVY = ("litellm", "openai", "textual")
CODE = f"""
import resource, sys
from tachyon_tui.cli import main
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    heavy = sum(name in sys.modules for name in {HEAVY})
    print(used.ru_utime + used.ru_stime, heavy, file=sys.stderr)
"""


def _run(*words: str) -> tuple[float, int]:
    """Seconds of processor time of one command, and how many heavy packages it imported."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    seconds, heavy = done.stderr.split()[-2:]
    return float(seconds), int(heavy)


def help_text(times: int = 9) -> list[Figure]:
    """`tachyon --help`."""
    runs = [_run("--help") for _time in range(times)]
    middle = median(seconds for seconds, _heavy in runs)
    return [
        Figure("tachyon --help", middle, HELP_SECONDS, "s of CPU", f"median of {times}"),
        Figure("tachyon --help imports", sum(heavy for _s, heavy in runs), 0, f"of {', '.join(HEAVY)}"),
    ]


def report(times: int = 3) -> list[Figure]:
    """`tachyon report`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / REPORT.stem
        file.write_bytes(lzma.decompress(REPORT.read_bytes()))
        runs = [_run("report", str(file)) for _time in range(times)]
    middle = median(seconds for seconds, _heavy in runs)
    return [
        Figure(
            "tachyon report imports",
            sum(heavy for _seconds, heavy in runs),
            0,
            f"of {', '.join(HEAVY)}",
            f"{middle:.2f} s of CPU, median of {times}",
        )
    ]
