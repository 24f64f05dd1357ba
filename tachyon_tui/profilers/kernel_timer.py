"""Times every kernel launch of an unmodified program: builds the recorder from its C sources, reads its record."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tachyon_tui.core.i18n import _
from tachyon_tui.core.launches import Dim3, Instrument, Launch, LaunchKey, RunRecord, Transfer
from tachyon_tui.core.regular import open_regular

if TYPE_CHECKING:
    from tachyon_tui.profilers.base import Finished, TimedCommand

SOURCES = tuple(Path(__file__).with_name(name) for name in ("kernel_timer.c", "module_hash.c"))
"""The recorder, and the hash of device code that it uses; one compiler command builds both."""
FORMAT = 1
"""Version of the record format that this module reads."""
BUILD_SECONDS = 60.0
RECORD_NAME = "record"
MAX_RECORD_BYTES = 1 << 30
"""Longest record that is read; at about 100 bytes a launch, ten million launches."""
MAX_DEMANGLED = 16 * 1024
"""Longest mangled name that is demangled, in bytes."""


class RecorderUnavailable(Exception):
    """The recorder cannot be built or loaded here; ``reason`` says why and ``fix`` what to do."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason} {fix}".strip())
        self.reason = reason
        self.fix = fix


# ---- building -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cupti:
    """Where a CUDA toolkit keeps CUPTI."""

    version: str
    """CUPTI_API_VERSION of the header, 18 for CUDA 11.8 to 130000 and more for CUDA 13."""
    includes: tuple[Path, ...]
    library: Path


def _toolkit_roots() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parent.parent
        yield Path(nvcc).parent.parent
    yield Path("/usr/local/cuda")
    yield from sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    yield Path("/opt/cuda")
    yield Path("/usr")


def _cupti_in(root: Path) -> Cupti | None:
    """CUPTI of the toolkit in ``root``: NVIDIA's, conda's and the distributions' layouts."""
    machine = platform.machine()
    names = {"aarch64": ("sbsa-linux", "aarch64-linux")}.get(machine, (f"{machine}-linux",))
    targets = [root / "targets" / name for name in names]
    extras = root / "extras" / "CUPTI"
    includes = tuple(
        d for d in (extras / "include", root / "include", *(t / "include" for t in targets)) if d.is_dir()
    )
    header = next((d / "cupti_version.h" for d in includes if (d / "cupti_version.h").is_file()), None)
    if header is None or not any((d / "cuda.h").is_file() for d in includes):
        return None
    version = re.search(
        r"^#define CUPTI_API_VERSION\s+(\d+)", header.read_text("utf-8", "replace"), re.MULTILINE
    )
    folders = [
        extras / "lib64", extras / "lib", root / "lib64", root / "lib", *(t / "lib" for t in targets),
        root / "lib" / f"{machine}-linux-gnu",
    ]  # fmt: skip
    for folder in folders:
        libraries = sorted(folder.glob("libcupti.so*"), key=lambda p: (p.name != "libcupti.so", p.name))
        if version and libraries:
            return Cupti(version[1], includes, libraries[0])
    return None


def find_cupti() -> Cupti:
    """The first toolkit that has CUPTI's headers and library.

    Raises `RecorderUnavailable` where there is none.
    """
    for root in _toolkit_roots():
        found = _cupti_in(root)
        if found is not None:
            return found
    raise RecorderUnavailable(
        _("CUPTI, which times the kernels, was not found on this machine."),
        _(
            "Install the CUDA toolkit with CUPTI (package cuda-cupti-dev) or set CUDA_HOME to its folder; "
            "on a machine without a compiler set TACHYON_RECORDER to a recorder built elsewhere."
        ),
    )


def _find_compiler() -> list[str]:
    named = shlex.split(os.environ.get("CC", ""))
    for command in ([named] if named else []) + [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    raise RecorderUnavailable(
        _("No C compiler was found to build the kernel timer."),
        _("Install gcc or clang, or set CC; or set TACHYON_RECORDER to a recorder built elsewhere."),
    )


def _compile(command: Sequence[str], deadline: float) -> tuple[int, str]:
    """Exit code and output of the compiler; raises `RecorderUnavailable` past ``deadline`` s."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as child:
        try:
            output, _unused = child.communicate(timeout=deadline)
            return child.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.communicate(timeout=2.0)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
    raise RecorderUnavailable(
        _("Building the kernel timer took longer than {seconds:.0f} s.").format(seconds=BUILD_SECONDS),
        _("Try `{command}` by hand.").format(command=shlex.join(command)),
    )


def build_recorder(cache_dir: Path | None = None) -> Path:
    """The recorder as a shared library, built on first use and kept per CUPTI version and sources.

    ``cache_dir`` is `$XDG_CACHE_HOME/tachyon` by default. `TACHYON_RECORDER` names a library to use instead.
    Raises `RecorderUnavailable`.
    """
    prebuilt = os.environ.get("TACHYON_RECORDER")
    if prebuilt:
        path = Path(prebuilt).expanduser().resolve()
        if not path.is_file():
            raise RecorderUnavailable(
                _("TACHYON_RECORDER names {path}, which is no file.").format(path=path),
                _("Correct or unset it."),
            )
        return path
    cupti = find_cupti()
    sources = b"".join(source.read_bytes() for source in SOURCES)
    key = hashlib.sha256(
        sources + os.fsencode(cupti.library.resolve()) + platform.machine().encode()
    ).hexdigest()
    if cache_dir is None:
        home = os.environ.get("XDG_CACHE_HOME")
        cache_dir = (Path(home) if home else Path("~/.cache").expanduser()) / "tachyon"
    folder = cache_dir.absolute() / f"recorder-{cupti.version}-{key[:16]}"
    library = folder / "recorder.so"
    if library.is_file():
        return library
    compiler = _find_compiler()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
            built = Path(scratch) / "recorder.so"
            command = compile_command(compiler, cupti, built)
            code, output = _compile(command, BUILD_SECONDS)
            if code != 0 or not built.is_file():
                tail = "\n".join(output.strip().splitlines()[-8:])
                raise RecorderUnavailable(
                    _("The kernel timer could not be compiled:\n{output}").format(output=tail),
                    _("Try `{command}` by hand.").format(command=shlex.join(command)),
                )
            built.replace(library)
    except OSError as error:
        raise RecorderUnavailable(
            _("The kernel timer could not be stored in {folder}: {error}.").format(
                folder=folder, error=error
            ),
            _("Set XDG_CACHE_HOME to a folder that can be written."),
        ) from error
    return library


def compile_command(compiler: Sequence[str], cupti: Cupti, output: Path, *extra: str) -> list[str]:
    """The compiler's command line; the library remembers where it found CUPTI."""
    return [
        *compiler, "-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", *extra,
        *(f"-I{folder}" for folder in cupti.includes),
        "-o", str(output), *map(str, SOURCES),
        str(cupti.library), f"-Wl,-rpath,{cupti.library.parent}", "-lpthread",
    ]  # fmt: skip


# ---- names ----------------------------------------------------------------------------------------------------

NVCC_STATIC = re.compile(r"__nv_static_(\d+)_")
"""nvcc's prefix of internal names in relocatable device code: the length of what follows, a hash of the source."""


@cache
def _demangler() -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer] | None:
    """``__cxa_demangle`` and ``free``, or None where there is no C++ runtime."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    free.restype = None
    free.argtypes = (ctypes.c_void_p,)
    return demangle, free


def demangle(mangled: str) -> str:
    """The C++ name with its parameters; the mangled one where it is none, is too long or no C++ runtime is found."""
    static = NVCC_STATIC.match(mangled)
    if static and len(static[1]) < 5:
        mangled = mangled[static.end() + int(static[1]) + 1 :] or mangled
    functions = _demangler()
    encoded = mangled.encode("utf-8", "replace")
    if functions is None or not mangled.startswith("_Z") or len(encoded) > MAX_DEMANGLED:
        return mangled
    status = ctypes.c_int(-1)
    text = functions[0](encoded, None, None, ctypes.byref(status))
    if not text:
        return mangled
    try:
        return ctypes.string_at(text).decode("utf-8", "replace") if status.value == 0 else mangled
    finally:
        functions[1](text)


# ---- reading --------------------------------------------------------------------------------------------------

COPY_KINDS = {
    b"1": "HtoD", b"2": "DtoH", b"3": "HtoD", b"4": "DtoH", b"5": "DtoD", b"6": "DtoD", b"7": "DtoD", b"8": "DtoD",
    b"9": "HtoH", b"10": "PtoP",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind; CUDA arrays lie on the device."""


@dataclass
class _Reading:
    """All that the files of one run said."""

    launches: list[Launch] = field(default_factory=list)
    transfers: dict[str, list[int]] = field(default_factory=dict)
    code: set[str] = field(default_factory=set)
    unreadable_code: bool = False
    dropped: int = 0
    cdp: bool = False
    late: bool = False
    failures: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    unfinished: int = 0

    def transfer(self, kind: str, size: bytes, start: bytes, end: bytes) -> None:
        """Add one copy or memset; raises ValueError."""
        count, total, first, last = 1, int(size), int(start), int(end)
        if total < 0 or not 0 <= first <= last:
            raise ValueError(size)
        for index, value in enumerate((count, total, last - first)):
            self.transfers.setdefault(kind, [0, 0, 0])[index] += value


def _dimensions(words: Sequence[bytes]) -> tuple[Dim3, Dim3, int, int]:
    """Grid, block, device and stream of the end of a K line; raises ValueError."""
    gx, gy, gz, bx, by, bz, device, stream, _graph = map(int, words)
    if min(gx, gy, gz, bx, by, bz, device, stream) < 0:
        raise ValueError
    return (gx, gy, gz), (bx, by, bz), device, stream


def _read_file(data: bytes, reading: _Reading) -> None:
    lines = data.split(b"\n")
    lines.pop()  # what a kill cut off, or nothing
    header = lines[0].split(b" ") if lines else []
    if header and header[:2] != [b"tachyon-recorder", b"%d" % FORMAT]:
        reading.unknown.append(lines[0][:60].decode("utf-8", "replace"))
        return
    names: dict[bytes, str] = {}
    groups: dict[tuple[bytes, bytes], tuple[LaunchKey, str, int, int]] = {}
    ended: int | None = None
    before = len(reading.launches)
    add = reading.launches.append
    for line in lines[1:]:
        try:
            if line[:2] == b"K ":
                _k, name, start, end, rest = line.split(b" ", 4)
                first, last = int(start), int(end)
                group = groups.get((name, rest))
                if group is None:
                    mangled = names[name]
                    grid, block, device, stream = _dimensions(rest.split(b" "))
                    group = (LaunchKey(demangle(mangled), grid, block), mangled, device, stream)
                    groups[name, rest] = group
                if not 0 <= first <= last:
                    raise ValueError
                add(Launch(group[0], group[1], first, last, group[2], group[3]))
            else:
                ended = _read_other(line, names, reading, ended)
        except (ValueError, KeyError):
            reading.damaged.append(line[:60].decode("utf-8", "replace"))
    if ended is None:
        reading.unfinished += 1
    elif ended != len(reading.launches) - before:
        reading.damaged.append(f"E {ended}")


def _read_other(line: bytes, names: dict[bytes, str], reading: _Reading, ended: int | None) -> int | None:
    """Read a line that is no K line; returns the count of the end mark. Raises ValueError for a damaged line."""
    kind, _space, rest = line.partition(b" ")
    words = rest.split(b" ")
    if kind == b"N":
        number, name = rest.split(b" ", 1)
        names[number] = name.decode("utf-8", "backslashreplace")
    elif kind == b"C":
        copy, size, start, end = words
        reading.transfer(COPY_KINDS.get(copy, "other"), size, start, end)
    elif kind == b"S":
        size, start, end = words
        reading.transfer("memset", size, start, end)
    elif kind == b"M":
        if rest == b"-":
            reading.unreadable_code = True
        elif re.fullmatch(rb"[0-9a-f]{16}", rest):
            reading.code.add(rest.decode())
        else:
            raise ValueError(line)
    elif line == b"X cdp":
        reading.cdp = True
    elif line == b"X late":
        reading.late = True
    elif kind == b"D":
        reading.dropped += int(rest)
    elif kind == b"F":
        reading.failures.append(rest[:200].decode("utf-8", "replace"))
    elif kind == b"E":
        return int(rest)
    else:
        raise ValueError(line)
    return ended


def _problem(reading: _Reading, processes: int) -> str:
    """The most telling reason why the record is no evidence, or nothing."""
    if not processes:
        return _("No kernel was launched, or the kernel timer was not loaded into the program.")
    if reading.unknown:
        return _("The record is of an unknown format ({text}); rebuild or unset TACHYON_RECORDER.").format(
            text=reading.unknown[0]
        )
    if reading.failures:
        return _(
            "The kernel timer failed in the program ({text}); a program under another profiler cannot be timed."
        ).format(text=reading.failures[0])
    if reading.cdp:
        return _("The program launches kernels from the device, which the kernel timer cannot see.")
    if reading.late:
        return _(
            "The program gave work to the GPU while it was ending (from an exit handler, a static object or another "
            "thread), too late to be timed; let all GPU work finish before main returns."
        )
    if reading.dropped:
        return _("{count} records were dropped; launch fewer kernels in one run.").format(
            count=reading.dropped
        )
    if reading.damaged:
        return _("The record is damaged at the line {text}.").format(text=repr(reading.damaged[0]))
    faulted = next((launch.key.name for launch in reading.launches if launch.start == launch.end), None)
    if faulted is not None:
        return _("The kernel {name} faulted or was still running at the end of the program.").format(
            name=faulted
        )
    if reading.unfinished:
        return _(
            "The program ended without its exit handlers (killed, aborted or _exit), so the record is incomplete "
            "({count} launches were seen)."
        ).format(count=len(reading.launches))
    return ""


def read_records(files: Iterable[Path]) -> RunRecord:
    """The record of one run from the files of all its processes; what is wrong is in ``problem``, never raised."""
    reading = _Reading()
    processes = 0
    for path in sorted(files):
        processes += 1
        try:
            with open_regular(path) as file:
                data = file.read(MAX_RECORD_BYTES + 1)
            if len(data) > MAX_RECORD_BYTES:
                reading.damaged.append(path.name)
            else:
                _read_file(data, reading)
        except OSError as error:
            reading.failures.append(str(error))
    return RunRecord(
        instrument="cupti",
        launches=tuple(reading.launches),
        transfers=tuple(Transfer(kind, *reading.transfers[kind]) for kind in sorted(reading.transfers)),
        code=frozenset() if reading.unreadable_code else frozenset(reading.code),
        problem=_problem(reading, processes),
        processes=max(processes, 1),
    )


class KernelTimer:
    """The `Timer` that loads the recorder into the program."""

    instrument: Instrument = "cupti"

    def __init__(self, recorder: Path | None = None) -> None:
        """Build the recorder unless one is given.

        Raises `RecorderUnavailable`, also where another tool is injected into CUDA programs.
        """
        self._recorder = (recorder or build_recorder()).absolute()
        other = os.environ.get("CUDA_INJECTION64_PATH")
        if other and Path(other).absolute() != self._recorder:
            raise RecorderUnavailable(
                _(
                    "CUDA_INJECTION64_PATH is set to {path}: another tool is loaded into CUDA programs."
                ).format(path=other),
                _("Unset CUDA_INJECTION64_PATH: only one tool can be loaded at a time."),
            )

    def prepare(self, argv: Sequence[str], scratch: Path) -> TimedCommand:
        """The same command with the two variables that load and direct the recorder."""
        # Late, as base.py needs pydantic and the rest of this module only the standard library.
        from tachyon_tui.profilers.base import TimedCommand

        return TimedCommand(tuple(argv), recorder_environment(self._recorder, scratch))

    def read(self, scratch: Path, finished: Finished) -> RunRecord:
        """The launches, copies and code of all processes of the run."""
        return read_records(scratch.glob(f"{RECORD_NAME}.*"))


def recorder_environment(recorder: Path, scratch: Path) -> dict[str, str]:
    """The variables that make a CUDA program write its records to the folder ``scratch``."""
    return {
        "CUDA_INJECTION64_PATH": str(recorder),
        "TACHYON_RECORD": str(scratch.absolute() / RECORD_NAME),
    }
