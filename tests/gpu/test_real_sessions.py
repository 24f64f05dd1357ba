"""Whole sessions on a real GPU: nvcc, the program, the recorder, ncu and git are real; the model alone is played.

Run on a machine with an NVIDIA GPU, nvcc and ncu:  python -m pytest tests/gpu -m gpu
With TACHYON_KEEP=FOLDER the recorded sessions are kept there as archives; with TACHYON_WORK=FOLDER the projects lie
there, so that the paths in a record are short and mean nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tachyon_tui.core.session import append_command, find_session, list_sessions
from tests.engine.lab import TESTS, Lab, Result

MISSING = [tool for tool in ("nvidia-smi", "nvcc", "ncu") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"needs an NVIDIA GPU; not found: {', '.join(MISSING)}"),
    pytest.mark.timeout(500),
]
HINT = "one warp per row and float4 loads, please"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(os.environ.get("TACHYON_WORK") or tmp_path)


def keep(lab: Lab, result: Result, name: str, requests: Path | None = None) -> None:
    """Archive what the session left: its directory without kept builds, the commits, what the model was told."""
    folder = os.environ.get("TACHYON_KEEP")
    if not folder:
        return
    (lab.root / "commits.patch").write_text(lab.git("log", "-p", "--stat", "--reverse"), "utf-8")
    (lab.root / "stdout.txt").write_text(result.stdout, "utf-8")
    with tarfile.open(Path(folder) / f"{name}.tar.xz", "w:xz") as archive:
        for path in sorted(result.paths.folder.rglob("*")):
            parts = path.relative_to(result.paths.folder).parts
            if path.is_file() and parts[0] not in ("builds", "scratch"):
                archive.add(path, f"{name}/session/{'/'.join(parts)}")
        for extra in (lab.root / "commits.patch", lab.root / "stdout.txt", lab.root / "result.md", requests):
            if extra is not None and extra.is_file():
                archive.add(extra, f"{name}/{extra.name}")


def explain(result: Result) -> str:
    rounds = [f"#{r.round} {r.state} {r.ms} {r.reason}" for r in result.of(e.RoundFinished)]
    failures = result.server.failures if result.server else []
    return "\n".join([*rounds, *failures, result.stdout[-3000:], result.stderr[-3000:]])


def test_cu_reduce_from_80_ms_to_the_memory_floor(folder: Path, tmp_path: Path) -> None:
    lab = Lab(folder, "cuda/cu_reduce", real_gpu=True)
    requests = tmp_path / "requests.jsonl"
    sent: list[str] = []

    def hint_in_round_2(_number: int) -> None:
        if not sent and list_sessions(lab.root):
            paths = find_session(lab.root)
            if (
                '"type":"round_started"' in (text := paths.journal.read_text("utf-8"))
                and '"round":2}' in text
            ):
                append_command(paths, c.Steer(text=HINT))
                sent.append(HINT)

    result = lab.cli(
        "evolve", "-k", "reduce_kernel", "./cu_reduce", "--max-iterations", "9", "--export", "result.md",
        scenario=TESTS / "scenarios" / "cu_reduce.json", timeout=450, record=requests, on_request=hint_in_round_2,
    )  # fmt: skip
    keep(lab, result, "cu_reduce", requests)
    assert result.server is not None
    assert result.server.failures == [], explain(result)
    assert result.code == 0, explain(result)
    accepted = [r.round for r in result.of(e.RoundFinished) if r.state == "SUCCESS"]
    assert accepted == [1, 4, 6], explain(result)
    assert len(result.states) == 9
    final = result.of(e.Remeasured)[0]
    assert final.confirmed
    assert 75 < final.base_ms < 90
    assert final.best_ms <= 0.13
    told = "\n".join(
        str(message["content"])
        for line in requests.read_text("utf-8").splitlines()
        for message in json.loads(line)["messages"]
    )
    assert "reduce.cu:10 87." in told
    assert "floor:" in told
    assert HINT in told
    assert "clearly slower" in told


@pytest.mark.parametrize(
    ("name", "build", "args", "states"),
    [
        (
            "matmul",
            "cmake -S . -B build -DCMAKE_CUDA_ARCHITECTURES=native && cmake --build build",
            ["./build/matmul"],
            ["SUCCESS", "ROLLED_BACK", "SUCCESS"],
        ),
        ("transpose", "make", ["-k", "transpose", "./transpose"], ["SUCCESS", "ROLLED_BACK", "SUCCESS"]),
    ],
)
def test_other_kernels(tmp_path: Path, name: str, build: str, args: list[str], states: list[str]) -> None:
    lab = Lab(tmp_path, f"cuda/{name}", real_gpu=True)
    lab.config = []
    requests = tmp_path / "requests.jsonl"
    result = lab.cli(
        "evolve", *args, "--build", build, "--max-iterations", "3",
        scenario=TESTS / "scenarios" / f"{name}.json", timeout=400, record=requests,
    )  # fmt: skip
    keep(lab, result, name, requests)
    assert result.server is not None
    assert result.server.failures == [], explain(result)
    assert result.states == states, explain(result)
    assert result.of(e.Remeasured)[0].confirmed
