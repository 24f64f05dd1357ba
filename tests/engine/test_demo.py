"""What `make demo` does, as a user's shell starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demonstration_improves_the_program_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("#")]
    assert rounds == ["ROLLED_BACK", "SUCCESS", "ROLLED_BACK"]
    assert "played: the model" in done.stdout
    assert list(tmp_path.glob("tachyon-demo-*")) == []
