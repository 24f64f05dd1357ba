"""Recorded reports give their recorded values; files that do not hold up are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tachyon_tui.core.profile import Metric
from tachyon_tui.profilers.advice import advice, strip_markup
from tachyon_tui.profilers.report import (
    ReportError,
    install_dir,
    load_reader,
    local_install,
    occupancy_limiters,
    read_report,
    source_texts,
    version_tuple,
)

# file, kernel, GPU time ns, compute %, DRAM %, achieved occupancy %, registers, samples
RECORDED = [
    ("cu_reduce-baseline", "reduce_kernel", 80_681_696, 5.569, 0.142, 12.69, 18, 3_262_152),
    ("cu_reduce-shared-tree", "reduce_kernel", 635_232, 70.966, 17.912, 71.27, 16, 80_755),
    ("cu_reduce-float4", "reduce_kernel", 167_200, 26.578, 67.242, 60.99, 38, 17_306),
    ("cu_reduce-flat-named-sections", "reduce_kernel", 123_808, 21.340, 90.760, 62.26, 40, 15_092),
    ("cu_reduce-flat-no-lineinfo", "reduce_kernel", 123_712, 21.294, 90.836, 62.59, 40, 14_961),
    ("cu_reduce-flat-set-basic", "reduce_kernel", 123_456, 21.429, 91.019, 61.84, 40, 0),
    ("matmul-naive", "matmul_kernel", 2_267_232, 11.350, 0.079, 90.20, 32, 280_383),
]


@pytest.mark.parametrize(
    ("file", "kernel", "ns", "compute", "dram", "occupancy", "registers", "samples"), RECORDED
)
def test_recorded_values(
    reports: Path,
    file: str,
    kernel: str,
    ns: int,
    compute: float,
    dram: float,
    occupancy: float,
    registers: int,
    samples: int,
) -> None:
    (profile,) = read_report(reports / f"{file}.ncu-rep").kernels
    values = {key: metric.value for key, metric in profile.metrics.items()}
    assert profile.function == kernel
    assert values["gpu_time"] == ns
    assert profile.gpu_time_ms == pytest.approx(ns / 1e6)
    assert values["compute_percent"] == pytest.approx(compute, abs=5e-4)
    assert values["dram_percent"] == pytest.approx(dram, abs=5e-4)
    assert values["occupancy_percent"] == pytest.approx(occupancy, abs=5e-3)
    assert values["registers"] == registers
    assert profile.samples == samples
    assert profile.device == "NVIDIA H200"
    assert profile.compute_capability == "9.0"


def test_time_only_report_of_six_launches(reports: Path) -> None:
    kernels = read_report(reports / "transpose-time-only-6-launches.ncu-rep").kernels
    assert [kernel.function for kernel in kernels] == ["scale_inplace"] + ["transpose_naive"] * 5
    times = [kernel.metrics["gpu_time"].value for kernel in kernels]
    assert times == [177_760, 994_240, 995_136, 994_880, 996_064, 992_448]
    assert all(kernel.metrics["compute_percent"].value is None for kernel in kernels)
    assert (kernels[1].grid, kernels[1].block) == ((256, 1024, 1), (32, 8, 1))
    assert kernels[0].floor is None


@pytest.mark.parametrize(
    ("file", "limiters"),
    [
        ("cu_reduce-baseline", ("blocks",)),
        ("cu_reduce-shared-tree", ("warps",)),
        ("cu_reduce-flat-set-basic", ("registers",)),
        ("matmul-naive", ("registers", "warps")),
    ],
)
def test_occupancy_limiters(reports: Path, file: str, limiters: tuple[str, ...]) -> None:
    (profile,) = read_report(reports / f"{file}.ncu-rep").kernels
    assert profile.occupancy_limiters == limiters


def test_absent_limits_limit_nothing() -> None:
    assert occupancy_limiters({}) == ()
    only = {"limit_warps": Metric(key="limit_warps", label="", value=None)}
    assert occupancy_limiters(only) == ()


def test_shared_memory_limits_a_kernel_that_uses_it() -> None:
    values = {"limit_warps": 8.0, "limit_shared": 2.0, "shared_static": 0.0, "shared_dynamic": 50_000.0}
    metrics = {key: Metric(key=key, label="", value=value) for key, value in values.items()}
    assert occupancy_limiters(metrics) == ("shared memory",)


def test_names(reports: Path) -> None:
    (profile,) = read_report(reports / "cu_reduce-baseline.ncu-rep").kernels
    assert profile.name == "reduce_kernel(const float *, float *, int)"
    assert profile.mangled == "_Z13reduce_kernelPKfPfi"
    assert profile.function == "reduce_kernel"


def test_source_texts(reports: Path) -> None:
    texts = source_texts(reports / "cu_reduce-baseline.ncu-rep")
    assert "atomicAdd(&out[row], in[i]);" in texts["/home/user/cu_reduce/reduce.cu"]
    assert source_texts(reports / "cu_reduce-flat-set-basic.ncu-rep") == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b"hello, this is text\n", "is not an Nsight Compute report"),
        (b"NVR\0" + b"\x13" * 3000, "damaged or incomplete"),
    ],
)
def test_unusable_files(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "x.ncu-rep"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ReportError, match=words) as caught:
        read_report(file)
    assert caught.value.fix


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_truncated_files(reports: Path, tmp_path: Path, share: float) -> None:
    whole = (reports / "cu_reduce-float4.ncu-rep").read_bytes()
    file = tmp_path / "cut.ncu-rep"
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ReportError, match="damaged or incomplete"):
        read_report(file)


def test_folder_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read"):
        read_report(tmp_path)


def test_native_noise_does_not_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def load_report(_path: str) -> list[object]:
        os.write(2, b"[libprotobuf ERROR] noise\n")
        return []

    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=load_report))
    file = tmp_path / "x.ncu-rep"
    file.write_bytes(b"NVR\0rest")
    with pytest.raises(ReportError, match="damaged"):
        read_report(file)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_reader_older_than_ncu_is_a_warning(reports: Path) -> None:
    file = reports / "transpose-time-only-6-launches.ncu-rep"
    assert read_report(file, ncu_version=(2025, 3, 1)).warnings == ()
    (warning,) = read_report(file, ncu_version=(2999, 1, 0)).warnings
    assert "pip install -U ncu-report" in warning


def test_missing_reader_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    monkeypatch.delitem(sys.modules, "ncu_report")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ReportError, match="pip install ncu-report"):
        load_reader()


def test_reader_of_the_ncu_installation_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "extras" / "python"
    folder.mkdir(parents=True)
    (folder / "ncu_report.py").write_text("ORIGIN = 'installation'\n")
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    try:
        assert load_reader(tmp_path).ORIGIN == "installation"
        assert str(folder) not in sys.path
    finally:
        sys.modules.pop("ncu_report", None)


def test_broken_reader_of_the_installation_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "extras" / "python"
    folder.mkdir(parents=True)
    (folder / "ncu_report.py").write_text("raise ImportError('built for another Python')\n")
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    assert hasattr(load_reader(tmp_path), "load_report")


@pytest.mark.parametrize(
    ("ncu", "home"),
    [
        ("nsight-compute-2025.3.1/ncu", "nsight-compute-2025.3.1"),
        ("nsight-compute-2025.3.1/target/linux-desktop/ncu", "nsight-compute-2025.3.1"),
        ("cuda/bin/ncu", "cuda/nsight-compute-2025.3.1"),
        ("elsewhere/bin/ncu", "opt/nvidia/nsight-compute/2025.3.1"),
    ],
)
def test_install_dir(tmp_path: Path, ncu: str, home: str) -> None:
    program = tmp_path / ncu
    program.parent.mkdir(parents=True)
    program.touch()
    assert install_dir(program, (2025, 3, 1, 0), tmp_path) is None
    reader = tmp_path / home / "extras" / "python" / "ncu_report.py"
    reader.parent.mkdir(parents=True)
    reader.touch()
    assert install_dir(program, (2025, 3, 1, 0), tmp_path) == tmp_path / home


@pytest.mark.parametrize(
    ("text", "version"),
    [("2026.3.1", (2026, 3, 1)), ("2025.3.1.0", (2025, 3, 1, 0)), ("", ()), ("unknown", ())],
)
def test_version_tuple(text: str, version: tuple[int, ...]) -> None:
    assert version_tuple(text) == version


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("see @section:WarpStateStats:Warp State Statistics@ now", "see Warp State Statistics now"),
        ("the @url:Guide:https://docs.nvidia.com/a#b@ says", "the Guide says"),
        ("at @sass:0x7f00:LDG.E@ and @source:a.cu:12:line 12@", "at LDG.E and line 12"),
        ("@P0 BRA stays", "@P0 BRA stays"),
    ],
)
def test_strip_markup(marked: str, plain: str) -> None:
    assert strip_markup(marked) == plain


def test_advice_drops_empty_and_repeated_entries() -> None:
    def result(text: str, kind: int = 2) -> dict[str, object]:
        return {
            "rule_identifier": "R",
            "name": "Rule",
            "rule_message": {"title": "", "message": text, "type": kind},
        }

    speedup = {**result("b", 3), "speedup_estimation": {"type": 1, "speedup": 12.5}}
    found = advice([result("a"), result("a"), result(""), result("c", 0), speedup])
    assert [(item.message, item.kind, item.title) for item in found] == [
        ("a", "optimization", "Rule"),
        ("b", "warning", "Rule"),
    ]
    assert (found[0].speedup_percent, found[0].scope) == (None, "")
    assert (found[1].speedup_percent, found[1].scope) == (12.5, "local")


def test_recorded_advice_has_no_markup(reports: Path) -> None:
    (profile,) = read_report(reports / "cu_reduce-baseline.ncu-rep").kernels
    assert {"SOLBottleneck", "TheoreticalOccupancy"} <= {item.rule for item in profile.advice}
    assert not [item for item in profile.advice if "@section" in item.message or "@url" in item.message]


def test_reading_needs_neither_screen_nor_model() -> None:
    heavy = "{'litellm', 'textual', 'rich'}"
    code = f"import sys, tachyon_tui.profilers.report; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_newest_installed_reader_is_found(tmp_path: Path) -> None:
    assert local_install(tmp_path) is None
    for name in ("2024.1.0", "2025.10.1", "2025.3.1"):
        folder = tmp_path / "opt/nvidia/nsight-compute" / name / "extras/python"
        folder.mkdir(parents=True)
        (folder / "ncu_report.py").touch()
    found = local_install(tmp_path)
    assert found is not None
    assert found.name == "2025.10.1"
