"""The kernel recorder: its record read back, its build, its hash of device code, its manners inside a program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachyon_tui.core.launches import LaunchKey, RunRecord, Transfer, busy_ns
from tachyon_tui.profilers import kernel_timer
from tachyon_tui.profilers.base import Finished
from tachyon_tui.profilers.kernel_timer import (
    KernelTimer,
    RecorderUnavailable,
    build_recorder,
    compile_command,
    demangle,
    find_cupti,
    read_records,
)

HEAD = b"tachyon-recorder 1 4711\n"
NAMES = b"N 0 _Z6reducePfi\nN 1 plain_c\n"
K0 = b"K 0 1000 1500 64 1 1 256 1 1 0 7 0\n"
K1 = b"K 1 2000 2100 8 2 1 32 4 1 1 13 5\n"
GOOD = HEAD + b"M 0123456789abcdef\n" + NAMES + K0 + K1 + K0 + b"E 3\n"


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., RunRecord]:
    def read(*contents: bytes) -> RunRecord:
        files = []
        for number, content in enumerate(contents):
            files.append(tmp_path / f"record.{number}")
            files[-1].write_bytes(content)
        return read_records(files)

    return read


Read = Callable[..., RunRecord]


def test_launches_are_read(read: Read) -> None:
    record = read(GOOD)
    assert record.problem == ""
    assert record.instrument == "cupti"
    assert record.processes == 1
    assert record.code == {"0123456789abcdef"}
    first, second, third = record.launches
    assert first.key == third.key == LaunchKey("reduce(float*, int)", (64, 1, 1), (256, 1, 1))
    assert (first.mangled, first.start, first.end, first.device, first.stream) == (
        "_Z6reducePfi",
        1000,
        1500,
        0,
        7,
    )
    assert second.key == LaunchKey("plain_c", (8, 2, 1), (32, 4, 1))
    assert (second.device, second.stream) == (1, 13)
    assert busy_ns((x.start, x.end) for x in record.launches) == 600


def test_copies_and_memsets_are_summed_by_kind(read: Read) -> None:
    record = read(
        HEAD
        + b"C 1 100 5 10\nC 3 50 10 11\nC 2 7 1 2\nC 10 8 1 2\nC 77 9 1 2\nS 64 1 5\nS 64 6 7\nC 8 1 1 1\nE 0\n"
    )
    assert record.problem == ""
    assert record.transfers == (
        Transfer("DtoD", 1, 1, 0),
        Transfer("DtoH", 1, 7, 1),
        Transfer("HtoD", 2, 150, 6),
        Transfer("PtoP", 1, 8, 1),
        Transfer("memset", 2, 128, 5),
        Transfer("other", 1, 9, 1),
    )


def test_processes_are_merged(read: Read) -> None:
    other = HEAD + b"M fedcba9876543210\nN 0 other\nK 0 1 2 1 1 1 1 1 1 0 7 0\nC 1 5 1 2\nE 1\n"
    record = read(GOOD, other)
    assert record.problem == ""
    assert record.processes == 2
    assert len(record.launches) == 4
    assert record.code == {"0123456789abcdef", "fedcba9876543210"}


def test_one_unreadable_module_leaves_no_code(read: Read) -> None:
    assert read(GOOD.replace(b"N 0", b"M -\nN 0")).code == frozenset()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "exit handlers"),
        (HEAD, "exit handlers"),
        (GOOD.replace(b"E 3\n", b""), "launches were seen"),
        (GOOD.replace(b"E 3\n", b"K 0 1000 15"), "exit handlers"),
        (GOOD.replace(b"E 3\n", b"E 3"), "exit handlers"),
        (GOOD.replace(b"E 3", b"E 4"), "damaged"),
        (GOOD + K0, "damaged"),
        (GOOD.replace(b"E 3", b"D 12\nD 1\nE 3"), "13 records were dropped"),
        (GOOD.replace(b"E 3", b"X cdp\nE 3"), "from the device"),
        (GOOD + b"X late\n", "while it was ending"),
        (HEAD + b"F cuptiSubscribe: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS\n", "MULTIPLE_SUBSCRIBERS"),
        (GOOD.replace(b"recorder 1", b"recorder 2"), "unknown format"),
        (b"\x00\x01\n" + GOOD, "unknown format"),
        (GOOD.replace(b"K 1 2000 2100", b"K 1 2000 2000"), "plain_c faulted"),
        (GOOD.replace(b"K 1 2000 2100", b"K 1 0 0"), "plain_c faulted"),
        (GOOD.replace(b"K 1 2000 2100", b"K 1 2000 1999"), "damaged"),
        (GOOD.replace(b"K 1 2000 2100", b"K 1 -5 2100"), "damaged"),
        (GOOD.replace(b"K 1 2000 2100", b"K 9 2000 2100"), "damaged"),
        (GOOD.replace(b" 13 5\n", b" 13\n"), "damaged"),
        (GOOD.replace(b" 13 5\n", b" 13 5 6\n"), "damaged"),
        (GOOD.replace(b"K 1 2000 2100 8", b"K 1 2000 21K 0 1000"), "damaged"),
        (GOOD.replace(b"M 0123", b"M 0xyz"), "damaged"),
        (GOOD.replace(b"M 0123", b"C 1 -4 1 2\nM 0123"), "damaged"),
        (GOOD.replace(b"M 0123", b"C 1 4 1\nM 0123"), "damaged"),
        (GOOD.replace(b"M 0123", b"Q 1\nM 0123"), "damaged"),
        (GOOD.replace(b"M 0123", b"\nM 0123"), "damaged"),
        (GOOD.replace(b"M 0123", b"N 5\nM 0123"), "damaged"),
    ],
)
def test_a_record_that_is_no_evidence_says_why(read: Read, content: bytes, word: str) -> None:
    assert word in read(content).problem
    assert word in read(GOOD, content).problem


def test_no_file_is_no_evidence(tmp_path: Path) -> None:
    assert "No kernel was launched" in read_records([]).problem
    assert "No such file" in read_records([tmp_path / "record.1"]).problem


def test_a_record_too_long_is_not_read(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_timer, "MAX_RECORD_BYTES", len(GOOD) - 1)
    assert "damaged" in read(GOOD).problem


@pytest.mark.parametrize(
    "name",
    [
        b"with space (and) more",
        b"\x1b[31mred\x1b[0m",
        b"[bold]markup[/bold]",
        b"\xff\xfe\x80",
        "核函数".encode(),
        b"_Z" + b"9" * 40,
        b"_ZN" + b"S_" * 5000,
        b"x" * 300_000,
        b"",
    ],
)
def test_hostile_names_are_only_names(read: Read, name: bytes) -> None:
    record = read(GOOD.replace(b"plain_c", name))
    assert record.problem == ""
    assert len(record.launches) == 3
    assert record.launches[1].mangled == name.decode("utf-8", "backslashreplace")


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(GOOD.splitlines()),
            st.builds(
                lambda letter, words: letter + b" " + b" ".join(b"%d" % w for w in words),
                st.sampled_from([b"K", b"C", b"S", b"E", b"D", b"N", b"M", b"F", b"X"]),
                st.lists(st.integers(-5, 10**22), max_size=13),
            ),
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_no_content_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], head: bool
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "record.1"
    path.write_bytes((HEAD if head else b"") + b"\n".join(lines))
    record = read_records([path])
    assert all(0 <= x.start <= x.end for x in record.launches)
    if not record.problem:
        assert lines[-1] == b"" or any(line.startswith(b"E ") for line in lines)


@settings(max_examples=100)
@given(st.integers(0, len(GOOD) - 1))
def test_a_record_cut_short_is_no_evidence(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "record.1"
    path.write_bytes(GOOD[:length])
    record = read_records([path])
    assert record.problem
    assert len(record.launches) <= 3


def test_many_launches_are_read_quickly(read: Read) -> None:
    lines = b"".join(
        b"K %d %d %d 64 1 1 256 1 1 0 7 0\n" % (i % 2, 1000 + i * 50, 1020 + i * 50) for i in range(50_000)
    )
    start = time.process_time()
    record = read(HEAD + NAMES + lines + b"E 50000\n")
    assert time.process_time() - start < 0.5
    assert (record.problem, len(record.launches)) == ("", 50_000)


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z2ktILi3EEvPf", "void kt<3>(float*)"),
        ("_ZN32_GLOBAL__N__2e02363e_4_a_cu_coef2kaEPf", "(anonymous namespace)::ka(float*)"),
        ("__nv_static_21__2e02363e_4_a_cu_coef__Z2ksPf", "ks(float*)"),
        ("add_kernel_0d1d2", "add_kernel_0d1d2"),
        ("_Znonsense", "_Znonsense"),
        ("__nv_static_99999999999_x", "__nv_static_99999999999_x"),
        ("__nv_static_3_", "__nv_static_3_"),
        ("", ""),
    ],
)
def test_names_are_demangled(mangled: str, name: str) -> None:
    assert demangle(mangled) == name


def test_without_a_cpp_runtime_names_stay_mangled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_timer, "_demangler", lambda: None)
    assert demangle("_Z1kPf") == "_Z1kPf"


# ---- building and loading ----


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment in which nothing of CUDA is configured, and a cache folder."""
    for name in ("TACHYON_RECORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_INJECTION64_PATH", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def make_toolkit(root: Path, include: str, lib: str) -> Path:
    """Just enough of a toolkit to be found; what it holds cannot be compiled."""
    for folder in (include, lib, "include"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "include/cuda.h").touch()
    (root / include / "cupti_version.h").write_text("/* v26 */\n#define CUPTI_API_VERSION 26\n")
    (root / lib / "libcupti.so.12").touch()
    return root


@pytest.mark.parametrize(
    ("include", "lib"),
    [("extras/CUPTI/include", "extras/CUPTI/lib64"), ("include", "lib64"), ("include", "lib")],
)
@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_the_toolkit_is_found(
    bare: Path, monkeypatch: pytest.MonkeyPatch, include: str, lib: str, variable: str
) -> None:
    root = make_toolkit(bare / "cuda", include, lib)
    monkeypatch.setenv(variable, str(root))
    found = find_cupti()
    assert found.version == "26"
    assert root / include in found.includes
    assert found.library == root / lib / "libcupti.so.12"


def test_the_toolkit_of_nvcc_is_found(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_toolkit(bare / "cuda", "include", "lib64")
    (root / "bin").mkdir()
    (root / "bin/nvcc").write_text("#!/bin/sh\n")
    (root / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(root / "bin"))
    assert find_cupti().library.parent == root / "lib64"


def test_no_toolkit_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_timer, "_toolkit_roots", lambda: iter([bare / "nowhere"]))
    with pytest.raises(RecorderUnavailable) as caught:
        build_recorder()
    assert "CUPTI" in caught.value.reason
    assert "CUDA_HOME" in caught.value.fix


def test_no_compiler_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(bare / "cuda", "include", "lib64")))
    monkeypatch.setenv("PATH", str(bare))
    with pytest.raises(RecorderUnavailable) as caught:
        build_recorder()
    assert "gcc" in caught.value.fix


def fake_compiler(bare: Path, script: str) -> str:
    path = bare / "fake-cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


WRITES_OUTPUT = 'while [ "$1" != -o ]; do shift; done; echo built > "$2"; echo once >> "$FAKE_LOG"'


def test_it_is_built_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(bare / "cuda", "include", "lib64")))
    monkeypatch.setenv("CC", fake_compiler(bare, WRITES_OUTPUT) + " -g")
    monkeypatch.setenv("FAKE_LOG", str(bare / "log"))
    first = build_recorder()
    assert first == build_recorder()
    assert first.read_text() == "built\n"
    assert first.is_relative_to(bare / "cache" / "tachyon")
    assert (bare / "log").read_text() == "once\n"
    assert [p.name for p in first.parent.iterdir()] == ["recorder.so"]


@pytest.mark.parametrize("changed", ["kernel_timer.c", "module_hash.c"])
def test_a_changed_source_is_built_again(bare: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(bare / "cuda", "include", "lib64")))
    monkeypatch.setenv("CC", fake_compiler(bare, WRITES_OUTPUT))
    monkeypatch.setenv("FAKE_LOG", str(bare / "log"))
    monkeypatch.setattr(
        kernel_timer, "SOURCES", tuple(Path(shutil.copy(s, bare)) for s in kernel_timer.SOURCES)
    )
    first = build_recorder()
    with (bare / changed).open("a") as source:
        source.write("/* changed */")
    assert build_recorder() != first


def test_a_failed_build_shows_the_compiler(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(bare / "cuda", "include", "lib64")))
    monkeypatch.setenv("CC", fake_compiler(bare, "echo no such struct >&2; exit 1"))
    with pytest.raises(RecorderUnavailable) as caught:
        build_recorder()
    assert "no such struct" in caught.value.reason
    assert "fake-cc" in caught.value.fix


def test_a_hanging_build_is_ended(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(bare / "cuda", "include", "lib64")))
    monkeypatch.setenv("CC", fake_compiler(bare, "exec sleep 600"))
    monkeypatch.setattr(kernel_timer, "BUILD_SECONDS", 0.05)
    with pytest.raises(RecorderUnavailable, match="longer"):
        build_recorder()


def test_a_cache_that_cannot_be_written_says_so(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(bare / "cuda", "include", "lib64")))
    monkeypatch.setenv("CC", fake_compiler(bare, WRITES_OUTPUT))
    (bare / "file").touch()
    with pytest.raises(RecorderUnavailable) as caught:
        build_recorder(bare / "file" / "cache")
    assert "XDG_CACHE_HOME" in caught.value.fix


def test_a_prebuilt_recorder_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = bare / "lib.so"
    library.touch()
    monkeypatch.setenv("TACHYON_RECORDER", str(library))
    assert build_recorder() == library
    library.unlink()
    with pytest.raises(RecorderUnavailable, match=r"lib\.so"):
        build_recorder()


def test_another_injected_tool_is_not_replaced(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/tool.so")
    with pytest.raises(RecorderUnavailable) as caught:
        KernelTimer(bare / "lib.so")
    assert "/opt/tool.so" in caught.value.reason


def test_the_timer_loads_the_recorder_and_reads_its_files(bare: Path) -> None:
    timer = KernelTimer(bare / "lib.so")
    scratch = bare / "scratch"
    scratch.mkdir()
    command = timer.prepare(["./app", "x y"], scratch)
    assert command.argv == ("./app", "x y")
    assert command.env["CUDA_INJECTION64_PATH"] == str(bare / "lib.so")
    Path(command.env["TACHYON_RECORD"] + ".17").write_bytes(GOOD)
    Path(command.env["TACHYON_RECORD"] + ".17.1").write_bytes(GOOD)
    record = timer.read(scratch, Finished(0, 1.0, bare / "out", bare / "log"))
    assert (record.problem, record.processes, len(record.launches)) == ("", 2, 6)


def test_it_is_importable_with_the_standard_library_alone() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None; "
        "import tachyon_tui.profilers.kernel_timer as k; print(k.FORMAT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n", "")


# ---- the recorder itself, on a fake CUPTI ----

DOUBLES = Path(__file__).parent.parent / "doubles"


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler on this machine")
    return found


def compile_c(*arguments: str | Path) -> None:
    done = subprocess.run([compiler(), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program on a fake CUPTI, and the real recorder for it, compiled without a warning."""
    try:
        cupti = find_cupti()
    except RecorderUnavailable:
        pytest.skip("no CUPTI headers on this machine")
    folder = tmp_path_factory.mktemp("recorder")
    fake = folder / "libcupti.so"
    includes = [f"-I{path}" for path in cupti.includes]
    compile_c(
        "-shared",
        "-fPIC",
        *includes,
        "-Wl,-soname,libcupti.so",
        "-o",
        fake,
        DOUBLES / "fake_cupti.c",
        "-lpthread",
    )
    binary = folder / "program"
    compile_c("-o", binary, DOUBLES / "fake_cuda_program.c", fake, "-ldl", f"-Wl,-rpath,{folder}")
    recorder = folder / "recorder.so"
    toolkit = kernel_timer.Cupti(cupti.version, cupti.includes, fake)
    compile_c(*compile_command([], toolkit, recorder, "-Wall", "-Wextra", "-Werror"))
    return binary, recorder


def run(program: tuple[Path, Path], scratch: Path, mode: str, **env: str) -> tuple[int, str, str, RunRecord]:
    binary, recorder = program
    timer = KernelTimer(recorder)
    command = timer.prepare([str(binary), mode], scratch)
    done = subprocess.run(
        command.argv, env={**os.environ, **command.env, **env}, capture_output=True, text=True, timeout=60
    )
    record = timer.read(scratch, Finished(done.returncode, 1.0, scratch / "out", scratch / "log"))
    return done.returncode, done.stdout, done.stderr, record


def test_the_recorder_builds_with_the_real_cupti(bare: Path) -> None:
    try:
        find_cupti()
    except RecorderUnavailable:
        pytest.skip("no CUPTI headers on this machine")
    compiler()
    assert build_recorder().read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("mode", "code", "launches", "processes", "word"),
    [
        ("plain", 3, 10, 1, ""),
        ("many", 3, 50_000, 1, ""),
        ("fork", 3, 12, 1, ""),
        ("forkfirst", 3, 20, 2, ""),
        ("closefds", 3, 10, 1, ""),
        ("quick_exit", 4, 10, 1, ""),
        ("exit_launch", 3, 11, 1, ""),
        ("late_launch", 3, 10, 1, "while it was ending"),
        ("late_copy", 3, 10, 1, "while it was ending"),
        ("late_graph", 3, 10, 1, "while it was ending"),
        ("late_free", 3, 10, 1, ""),
        ("drop", 3, 10, 1, "5 records were dropped"),
        ("_exit", 4, 10, 1, "exit handlers"),
        ("kill", -signal.SIGKILL, 10, 1, "exit handlers"),
        ("abort", -signal.SIGABRT, None, 1, "exit handlers"),
    ],
)
def test_the_recorder_records_and_is_not_noticed(
    program: tuple[Path, Path],
    tmp_path: Path,
    mode: str,
    code: int,
    launches: int | None,
    processes: int,
    word: str,
) -> None:
    returned, out, err, record = run(program, tmp_path, mode)
    assert returned == code
    assert set(out.split()) <= {"out"}
    assert err == ""
    assert record.processes == processes
    assert (word in record.problem) if word else record.problem == ""
    if launches is not None:
        assert len(record.launches) == launches
        assert record.launches[0].key == LaunchKey("odd name\\x0a\\x5c", (4, 1, 2), (256, 1, 1))
        assert record.launches[1].key.name == "k(float*)"
        assert (record.launches[1].device, record.launches[1].stream) == (3, 7)
        assert record.launches[1].end - record.launches[1].start == 50
        assert record.transfers[0] == Transfer("HtoD", processes, 100 * processes, processes)
        assert record.code == frozenset()


def test_a_program_under_another_profiler_runs_unrecorded(program: tuple[Path, Path], tmp_path: Path) -> None:
    returned, out, err, record = run(program, tmp_path, "plain", FAKE_BUSY="1")
    assert (returned, out, err) == (3, "out\n", "")
    assert "cuptiSubscribe" in record.problem


def test_a_folder_that_cannot_be_written_leaves_the_program_alone(
    program: tuple[Path, Path], tmp_path: Path
) -> None:
    returned, out, err, record = run(
        program, tmp_path, "plain", TACHYON_RECORD=str(tmp_path / "none" / "record")
    )
    assert (returned, out, err) == (3, "out\n", "")
    assert record.problem


# ---- the hash of device code ----

HASH_SOURCE = Path(kernel_timer.__file__).with_name("module_hash.c")

KERNELS = """
__device__ float table[8] = {1, 2, 3};
__device__ float other[8] = {1, 2, 3};
__constant__ float weight = 2;
static __device__ float hidden[8];
namespace { __global__ void inner(float *p) { p[threadIdx.x] *= hidden[threadIdx.x]; } }
__global__ void outer(float *p, int n) {
    __shared__ float s[32];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = s[31 - threadIdx.x] * weight + table[n & 7];
}
void run(float *p) { inner<<<1, 32>>>(p); outer<<<1, 32>>>(p, 3); }
"""


@pytest.fixture(scope="module")
def hasher(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    binary = tmp_path_factory.mktemp("hasher") / "hash"
    compile_c("-Wall", "-Wextra", "-Werror", "-DTACHYON_TEST_MAIN", "-o", binary, HASH_SOURCE)

    def hash_of(path: Path) -> str:
        done = subprocess.run([binary, path], capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    return hash_of


def cubin(folder: Path, source: str, *flags: str) -> Path:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    folder.mkdir(exist_ok=True)
    (folder / "k.cu").write_text(source)
    output = folder / "k.cubin"
    done = subprocess.run(
        [nvcc, "-cubin", *flags, "-o", output, "k.cu"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return output


def test_the_hash_follows_the_code_alone(hasher: Callable[[Path], str], tmp_path: Path) -> None:
    base = hasher(cubin(tmp_path / "base", KERNELS))
    assert len(base) == 16
    moved = "// a comment\n\n" + KERNELS.replace("__global__", "/* and */\n__global__")
    assert hasher(cubin(tmp_path / "lines", KERNELS, "-lineinfo")) == base
    assert hasher(cubin(tmp_path / "comment", moved, "-lineinfo")) == base
    changes = {
        "code": ("* weight", "/ weight"),
        "constant": ("weight = 2", "weight = 3"),
        "data": ("table[8] = {1", "table[8] = {4"),
        "address": ("table[n & 7]", "other[n & 7]"),
        "shared": ("s[32]", "s[64]"),
        "bounds": ("void outer", "void __launch_bounds__(64) outer"),
    }
    hashes = {
        name: hasher(cubin(tmp_path / name, KERNELS.replace(*change))) for name, change in changes.items()
    }
    assert len({base, *hashes.values()}) == len(changes) + 1


def test_device_side_launches_are_seen(hasher: Callable[[Path], str], tmp_path: Path) -> None:
    source = (
        "__global__ void child(float *p) { p[0] = 1; }\n"
        "__global__ void parent(float *p) { child<<<1, 1>>>(p); }\n"
    )
    assert hasher(cubin(tmp_path / "cdp", source, "-rdc=true", "-arch=sm_90")).endswith(" cdp")
    assert not hasher(cubin(tmp_path / "no", KERNELS, "-rdc=true", "-arch=sm_90")).endswith(" cdp")


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"\x7fELF\2\1" + b"\xff" * 200, b"// PTX\n.version 8.0\n" * 20]
)
def test_what_is_no_cubin_has_no_hash(hasher: Callable[[Path], str], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "module"
    path.write_bytes(content)
    assert hasher(path) == "-"


def test_a_damaged_cubin_breaks_nothing(tmp_path: Path) -> None:
    whole = cubin(tmp_path / "whole", KERNELS, "-rdc=true").read_bytes()
    binary = tmp_path / "hash"
    compile_c(
        "-g",
        "-fsanitize=undefined",
        "-fno-sanitize-recover",
        "-DTACHYON_TEST_MAIN",
        "-o",
        binary,
        HASH_SOURCE,
    )
    sections = int.from_bytes(whole[40:48], "little")
    files = []
    for at in range(sections, len(whole) - 8, 37):
        for value in (0xFF, 0x00, 0x7F):
            files.append(tmp_path / f"{at}-{value}")
            files[-1].write_bytes(whole[:at] + bytes([value]) * 8 + whole[at + 8 :])
    for length in range(0, len(whole), 301):
        files.append(tmp_path / f"cut-{length}")
        files[-1].write_bytes(whole[:length])
    done = subprocess.run([binary, *files], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(files)
