"""What a verdict costs on a real GPU, beside the other way: a plain run plus `ncu --set full` over the whole program.

    python -m tests.gpu.verdict_cost [FOLDER]

Plays one session a program, with edits that are clearly slower, without gain, close, or a clear gain, and prints a
Markdown table. Seconds run from the passed build to the verdict; all in one call, on one machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tachyon_tui.core import commands as c
from tachyon_tui.core import events as e
from tachyon_tui.core.session import append_command, find_session
from tests.engine.lab import BUILD, PROJECTS, RUN, TESTS, Lab, edit

VARIANTS = TESTS / "scenarios"


@dataclass(frozen=True)
class Case:
    """One program with the edits to judge; an edit replaces ``old`` by ``new``, an accepted one is built upon."""

    name: str
    project: str
    file: str
    program: str
    edits: tuple[tuple[str, str, str], ...]
    """Label, old text, new text."""
    start: str = ""
    """Source that replaces the file before the session."""
    kernel: str = ""
    prepare: str = ""
    build: str = "make"


def variant(name: str) -> str:
    return (VARIANTS / f"{name}.cu").read_text("utf-8")


def cases() -> list[Case]:
    """The four programs."""
    reduce, transpose, matmul = (
        (PROJECTS / "cuda" / path).read_text("utf-8")
        for path in ("cu_reduce/reduce.cu", "transpose/transpose.cu", "matmul/src/matmul.cu")
    )
    atomic = "    atomicAdd(&out[row], in[i]);\n"
    fine, store = (
        variant("cu_reduce/rows16w4"),
        "        out[flat(col, row, height)] = in[flat(row, col, width)];\n",
    )
    acc = "    c[row * n + col] = acc;\n"
    return [
        Case(
            "cu_reduce, 80 ms", "cuda/cu_reduce", "reduce.cu", "./cu_reduce",
            (
                ("clearly slower", atomic, "    atomicAdd(&out[row], 0.5f * in[i]);\n" * 2),
                ("no gain", "static_cast<int>(i / cols)", "static_cast<int>(static_cast<unsigned>(i) / static_cast<unsigned>(cols))"),
                ("clear gain", reduce, variant("cu_reduce/tree")),
            ),
        ),
        Case(
            "cu_reduce, 0.12 ms", "cuda/cu_reduce", "reduce.cu", "./cu_reduce",
            (
                ("clearly slower", fine, variant("cu_reduce/warp")),
                ("no gain", "(v[r].x + v[r].y) + (v[r].z + v[r].w)", "(v[r].x + v[r].z) + (v[r].y + v[r].w)"),
                ("close", fine, variant("cu_reduce/rows4")),
            ),
            start=fine,
        ),
        Case(
            "transpose, 6 launches", "cuda/transpose", "transpose.cu", "./transpose",
            (
                ("clearly slower", store, store + "        __threadfence();\n" + store.replace("= in", "= 1.0f * in") * 2),
                ("no gain", "const float* in, float* out, int width", "const float* __restrict__ in, float* __restrict__ out, int width"),
                ("clear gain", transpose, variant("transpose/tile")),
            ),
            kernel="transpose",
        ),
        Case(
            "matmul", "cuda/matmul", "src/matmul.cu", "./build/matmul",
            (
                ("clearly slower", acc, acc + "    __threadfence();\n    for (int i = 0; i < k; ++i) acc += a[row * k + i] * b[i * n + col];\n    c[row * n + col] = acc * 0.5f;\n"),
                ("no gain", "const float* a, const float* b, float* c, int m, int n, int k) {\n    const int row", "const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {\n    const int row"),
                ("clear gain", matmul, variant("matmul/coalesced")),
            ),
            prepare="cmake -S . -B build -DCMAKE_CUDA_ARCHITECTURES=native",
            build="cmake --build build",
        ),
    ]  # fmt: skip


def play(case: Case, folder: Path) -> tuple[list[Any], float]:
    """The verdicts of one session, and seconds of the other way."""
    lab = Lab(folder, case.project, real_gpu=True)
    lab.config = []
    if case.start:
        (lab.root / case.file).write_text(case.start, "utf-8")
        lab.git("commit", "-qam", "start here")
    if case.prepare:
        subprocess.run(case.prepare, shell=True, cwd=lab.root, check=True, capture_output=True)
    rounds = [
        [{"text": label, "calls": [edit(old, new, case.file), BUILD]}, {"calls": [RUN]}, {"text": label}]
        for label, old, new in case.edits
    ]
    kernel = ["-k", case.kernel] if case.kernel else []
    subprocess.run(case.build, shell=True, cwd=lab.root, check=True, capture_output=True)
    other = the_other_way(lab.root, case.program)
    rounds.append([{"text": "enough"}])

    def stop_after_the_last(_number: int) -> None:
        """The final re-measurement is not what is asked here."""
        paths = find_session(lab.root)
        if paths.journal.read_text("utf-8").count('"type":"round_finished"') == len(case.edits):
            append_command(paths, c.Stop())

    result = lab.cli(
        "evolve", *kernel, case.program, "--build", case.build, "--max-iterations", str(len(rounds)),
        "--report", str(a_report(folder)), scenario=rounds, timeout=400, on_request=stop_after_the_last,
    )  # fmt: skip
    if len(result.of(e.Verdict)) != len(case.edits):
        print(result.stdout[-1500:], result.stderr[-1500:], result.reasons)
    return result.of(e.Verdict), other


def a_report(folder: Path) -> Path:
    """Any report, so that no ncu run of the baseline's takes time here."""
    import lzma

    path = folder / "baseline.ncu-rep"
    with lzma.open(TESTS / "data" / "reports" / "cu_reduce-flat-set-basic.ncu-rep.xz") as file:
        path.write_bytes(file.read())
    return path


def the_other_way(root: Path, program: str) -> float:
    """Seconds of a plain run plus one `ncu --set full` over every launch of the program."""
    begun = time.monotonic()
    subprocess.run([program], cwd=root, check=True, capture_output=True)
    subprocess.run(
        ["ncu", "--set", "full", "--import-source", "yes", "--clock-control", "none", "-f", "-o", "all", program],
        cwd=root, check=True, capture_output=True,
    )  # fmt: skip
    return time.monotonic() - begun


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    print(
        "| program | edit | verdict | runs | s to the verdict | of its plain runs | other way, s | times faster |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for number, case in enumerate(cases()):
        verdicts, other = play(case, folder / str(number))
        for verdict in verdicts:
            label = case.edits[verdict.round][0]
            print(
                f"| {case.name} | {label} | {verdict.kind} | {verdict.runs} | {verdict.seconds:.2f} "
                f"| {verdict.seconds / verdict.run_seconds:.3f} | {other:.2f} | {other / verdict.seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
