"""Reads `.ncu-rep` files through NVIDIA's `ncu_report`, and refuses files whose contents do not hold up.

`ncu_report` raises for a missing file only: an empty, foreign or truncated one loads as no range, or as an
action without name and metrics, so the contents are checked here.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import Dim3, KernelProfile, Metric, Report
from tachyon_tui.profilers.advice import advice
from tachyon_tui.profilers.hot_lines import sampling
from tachyon_tui.profilers.metrics import Action, collect, read_number, read_value
from tachyon_tui.profilers.roofline import floor

FUNCTION, DEMANGLED, MANGLED = 0, 1, 2
"""Name bases of `IAction.name`."""
MAGIC = (b"NVR\0", b"\x28\xb5\x2f\xfd")
"""First bytes of an `.ncu-rep` and of a zstd-compressed `.ncu-repz`."""
NOISE_LOCK = threading.Lock()
"""Guards the redirection of file descriptor 2, which belongs to the whole process."""


class ReportError(Exception):
    """A report that cannot be used."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message} {fix}".strip())
        self.message = message
        """What is wrong."""
        self.fix = fix
        """What to do next."""


def install_dir(ncu: str | Path, version: tuple[int, ...] = (), root: Path = Path("/")) -> Path | None:
    """The Nsight Compute folder that an `ncu` belongs to (the one with ``extras/python``), or None.

    `ncu` may be a link, or a wrapper script of the CUDA toolkit: then the folder lies beside it or in
    ``/opt/nvidia/nsight-compute`` under its version.
    """
    parents = Path(ncu).resolve().parents[:4]
    candidates = [*parents, *(found for folder in parents for found in folder.glob("nsight-compute-*"))]
    installed = root / "opt/nvidia/nsight-compute"
    candidates += [installed / ".".join(map(str, version[:length])) for length in range(len(version), 1, -1)]
    reader = Path("extras", "python", "ncu_report.py")
    return next((folder for folder in candidates if (folder / reader).is_file()), None)


def local_install(root: Path = Path("/")) -> Path | None:
    """The newest Nsight Compute of this machine in one of its usual places that brings a reader, or None."""
    places = [
        *root.glob("opt/nvidia/nsight-compute/*/extras/python/ncu_report.py"),
        *root.glob("usr/local/cuda*/nsight-compute-*/extras/python/ncu_report.py"),
    ]
    folders = [place.parents[2] for place in places]
    return max(folders, key=lambda folder: version_tuple(folder.name.rpartition("-")[2]), default=None)


def load_reader(install: Path | None = None) -> Any:
    """The `ncu_report` module: of the ncu installation first, for it reads that ncu's files, else the wheel.

    :raises ReportError: neither can be imported.
    """
    if "ncu_report" in sys.modules:
        return sys.modules["ncu_report"]
    with warnings.catch_warnings():
        # The generated binding lacks __module__ on some types, which Python 3.12 deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        if install is not None:
            folder = str(install / "extras" / "python")
            sys.path.insert(0, folder)
            try:
                return importlib.import_module("ncu_report")
            except ImportError:
                sys.modules.pop("ncu_report", None)
            finally:
                sys.path.remove(folder)
        try:
            return importlib.import_module("ncu_report")
        except ImportError as error:
            raise ReportError(
                _("NVIDIA's report reader cannot be loaded ({error}).").format(error=error),
                _("Install it with: pip install ncu-report"),
            ) from error


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Sends what native code writes to file descriptor 2 to nowhere: it would tear the screen."""
    with NOISE_LOCK:
        try:
            kept = os.dup(2)
        except OSError:  # descriptor 2 is closed: nothing can reach the terminal
            yield
            return
        try:
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def load_actions(path: str | Path, install: Path | None = None) -> tuple[tuple[Action, ...], str]:
    """The profiled launches of a report in order, and the version of the reader.

    :raises ReportError: missing, empty, no report, damaged, or without a launch.
    """
    file = Path(path)
    again = _("Profile again, or name another file.")
    try:
        with file.open("rb") as stream:
            head = stream.read(4)
    except OSError as error:
        raise ReportError(
            _("{file} cannot be read: {reason}.").format(file=file, reason=error.strerror or error),
            _("Check the path and its permissions."),
        ) from error
    if not head:
        raise ReportError(_("{file} is empty.").format(file=file), again)
    if head not in MAGIC:
        raise ReportError(
            _("{file} is not an Nsight Compute report.").format(file=file),
            _("Give a file that ncu wrote with -o (.ncu-rep)."),
        )
    reader = load_reader(install)
    with _silent_stderr():
        context = reader.load_report(str(file))
        actions: list[Action] = [action for group in context for action in group]
    if not actions or any(not action.name(DEMANGLED) or not any(action.metric_names()) for action in actions):
        raise ReportError(
            _("{file} is damaged or incomplete: it holds no readable kernel.").format(file=file), again
        )
    version = str(context.get_version()) if hasattr(context, "get_version") else ""
    return tuple(actions), version


def read_report(
    path: str | Path, install: Path | None = None, ncu_version: tuple[int, ...] | None = None
) -> Report:
    """Everything a `.ncu-rep` file says, with its floor from measured work.

    ``install`` is the folder of an Nsight Compute installation (see `install_dir`) whose own reader is
    preferred; ``ncu_version`` is the version that wrote the file where it is known, to warn when the reader
    is older.

    :raises ReportError: the file cannot be used; it says what to do.
    """
    actions, version = load_actions(path, install)
    notes = []
    reader = version_tuple(version)
    if ncu_version and reader and reader[:2] < ncu_version[:2]:
        notes.append(
            _(
                "The report reader {reader} is older than ncu {ncu}; some figures may be missing. "
                "Update it with: pip install -U ncu-report"
            ).format(reader=version, ncu=".".join(map(str, ncu_version)))
        )
    kernels = tuple(_profile(action) for action in actions)
    return Report(path=str(path), reader_version=version, kernels=kernels, warnings=tuple(notes))


def source_texts(path: str | Path, install: Path | None = None) -> dict[str, str]:
    """The source files embedded in a report (`--import-source yes`), as the compiler saw their paths.

    :raises ReportError: the file cannot be used.
    """
    actions, _version = load_actions(path, install)
    return {file: text for action in actions for file, text in _sources(action).items()}


def version_tuple(text: str) -> tuple[int, ...]:
    """``2025.3.1.0`` as ``(2025, 3, 1, 0)``; empty for a text that is no version."""
    parts = text.strip().split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def grid_and_block(action: Action) -> tuple[Dim3, Dim3]:
    """Launch dimensions in blocks and in threads; zeros where they were not collected."""

    def dims(kind: str) -> Dim3:
        x, y, z = (int(read_number(action, f"launch__{kind}_dim_{axis}") or 0) for axis in "xyz")
        return (x, y, z)

    return dims("grid"), dims("block")


def _sources(action: Action) -> dict[str, str]:
    return {str(file): str(text) for file, text in action.source_files().items() if text}


def _profile(action: Action) -> KernelProfile:
    metrics = collect(action)
    sources = _sources(action)
    samples = sampling(action, sources)
    grid, block = grid_and_block(action)
    time = metrics["gpu_time"].value
    major, minor = (
        read_number(action, f"device__attribute_compute_capability_{v}") for v in ("major", "minor")
    )
    profile = KernelProfile(
        name=action.name(DEMANGLED) or "",
        mangled=action.name(MANGLED) or "",
        function=action.name(FUNCTION) or "",
        grid=grid,
        block=block,
        device=str(read_value(action, "device__attribute_display_name") or ""),
        compute_capability=f"{major:.0f}.{minor:.0f}" if major is not None and minor is not None else "",
        gpu_time_ms=time / 1e6 if isinstance(time, float) else None,
        metrics=metrics,
        stalls=samples.stalls,
        occupancy_limiters=occupancy_limiters(metrics),
        samples=samples.samples,
        sampled=samples.confidence,
        lines=samples.lines,
        hot_lines=samples.hot_lines,
        source_files=tuple(sorted(sources)),
        advice=advice(action.rule_results_as_dicts()),
    )
    return profile.model_copy(update={"floor": floor(profile)})


def occupancy_limiters(metrics: dict[str, Metric]) -> tuple[str, ...]:
    """What allows the fewest blocks per SM; all that tie.

    ``registers``, ``shared memory``, ``warps``, ``blocks``, ``barriers``.

    A limit that was not collected is ignored. ncu gives a resource that the kernel does not use the largest
    number of blocks there can be, so shared memory and barriers do not count when the kernel has none of its
    own.
    """

    def figure(key: str) -> float | None:
        metric = metrics.get(key)
        return metric.value if metric is not None and isinstance(metric.value, float) else None

    limits = {
        name: limit
        for name, key in (
            ("registers", "limit_registers"),
            ("shared memory", "limit_shared"),
            ("warps", "limit_warps"),
            ("blocks", "limit_blocks"),
            ("barriers", "limit_barriers"),
        )
        if (limit := figure(key)) is not None and limit > 0
    }
    static, dynamic = figure("shared_static"), figure("shared_dynamic")
    if static == 0 and dynamic == 0:
        limits.pop("shared memory", None)
    if figure("barriers") == 0:
        limits.pop("barriers", None)
    fewest = min(limits.values(), default=0)
    return tuple(name for name, limit in limits.items() if limit == fewest)
