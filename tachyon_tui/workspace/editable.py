"""Which files the agent may edit, and which new ones it may make: everything else is refused with a plain answer."""

from __future__ import annotations

import os
import re
import stat
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from tachyon_tui.core.i18n import _
from tachyon_tui.workspace.cpp_lexer import CannotTell, tokenise
from tachyon_tui.workspace.cpp_units import GPU_HEADER_FOLDERS, GPU_HEADERS
from tachyon_tui.workspace.edits import MAX_FILE_BYTES
from tachyon_tui.workspace.host_code import device_names
from tachyon_tui.workspace.problems import Problem

CPP_SUFFIXES = frozenset(
    {".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".inc", ".cpp", ".cc", ".cxx", ".c"}
)
NEW_SUFFIXES = frozenset({".cu", ".cuh", ".h", ".hpp", ".inl", ".py"})
_BUILD_FILE = re.compile(
    r"(?:cmakelists\.txt|(?:gnu)?makefile.*|.*\.(?:mk|cmake|ninja|bazel|bzl|sh|toml|cfg|ini|ya?ml|json|lock|gradle)|"
    r"build|workspace|meson\.build|meson_options\.txt|sconstruct|sconscript|configure.*|setup\.py|conftest\.py|"
    r"(?:site|user)customize\.py|__init__\.py|dockerfile|justfile|\..*)",
    re.IGNORECASE,
)
_OFF_LIMITS = frozenset({".git", ".tachyon"})
_INCLUDE = re.compile(r'^\s*#\s*include(?:_next)?\s*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
_TRITON = re.compile(r"^\s*@\s*(?:triton\s*\.\s*)?jit\b", re.MULTILINE)
_HEADER_FOLDERS = ("/usr/include", "/usr/local/include", "/usr/local/cuda*/include", "/usr/lib/gcc/*/*/include",
                   "/usr/include/c++/*", "/usr/include/*-linux-gnu")  # fmt: skip
HELPER_DEPTH = 3
"""How far the search follows device functions that are called in other files."""


class NotEditable(Exception):
    """The path may not be edited or made; the message says why and what may."""


class NothingEditable(Problem):
    """No file of the repository may be edited."""


class EditableSet:
    """Tracked files that may be edited, and the places where new ones may be made. Paths are relative to the root."""

    def __init__(
        self, root: Path, files: Iterable[str], new_below: Iterable[str], tracked: Collection[str]
    ) -> None:
        self.root = root.resolve()
        self.files = frozenset(files)
        self.new_below = tuple(sorted(new_below))
        """Folders: new files may stand in them or, with allowed_edit_paths, below them. "" is the root."""
        self.recursive = True
        self.created: set[str] = set()
        """New files that were made and not taken back."""
        self._tracked = tracked

    @classmethod
    def find(
        cls,
        root: Path,
        tracked: Collection[str],
        *,
        kernels: Sequence[str] = (),
        source_files: Sequence[str] = (),
        allowed: Sequence[str] = (),
    ) -> EditableSet:
        """The editable set for the target kernels.

        ``tracked`` are the repository's files without submodules. With ``kernels`` (base names) the set is the files
        that hold one, its device functions or its launch: those of ``source_files`` (as the report's line information
        names them), those in whose code a kernel's name stands, and those that define device functions that these
        call. Without a kernel (a stopwatch session) it is what ``allowed`` (files or folders relative to the root)
        holds. ``allowed`` narrows the set otherwise, and new files may stand anywhere below it; without ``allowed``
        only directly in a folder that holds an editable file. Build files, links and files with more than one name
        are never in it. Raises `NothingEditable`.
        """
        root = root.resolve()
        limits = [_limit(root, entry) for entry in allowed]
        for entry, limit in zip(allowed, limits, strict=True):
            if not any(_within(path, limit) for path in tracked) and not (root / limit).is_dir():
                raise NothingEditable(
                    _("allowed_edit_paths names {path}, where there is no tracked file.").format(path=entry),
                    _("Name files or folders relative to {root}, for example src/kernels/.").format(
                        root=root
                    ),
                )
        fit = [
            path
            for path in tracked
            if (not limits or any(_within(path, limit) for limit in limits)) and not _unfit(root, path)
        ]
        if kernels:
            wanted = _holding(root, tracked, frozenset(kernels), source_files)
            files = [path for path in fit if path in wanted]
        elif limits:
            files = fit
        else:
            raise NothingEditable(
                _("There is no target kernel to look for, so nothing says which files may be edited."),
                _('Set allowed_edit_paths in .tachyon/evolve.toml, for example ["src/kernels/"].'),
            )
        if not files:
            raise NothingEditable(
                _("No tracked file that may be edited holds {kernels}.").format(
                    kernels=", ".join(kernels) or "code"
                ),
                _(
                    "Check --kernel and allowed_edit_paths, and that the source files are tracked: git add FILES"
                ),
            )
        if limits:
            folders = {limit if (root / limit).is_dir() else _folder(limit) for limit in limits}
        else:
            folders = {_folder(path) for path in files}
        result = cls(root, files, folders, tracked)
        result.recursive = bool(limits)
        return result

    def check(self, path: str) -> str:
        """The path, relative to the root and normalised, of an existing file that may be edited.

        Raises `NotEditable`.
        """
        name = self._named(path)
        if name not in self.files and name not in self.created:
            raise NotEditable(self._refusal(name))
        why = _unfit(self.root, name)
        if why:
            raise NotEditable(_("{path} may not be edited: {why}.").format(path=name, why=why))
        return name

    def check_new(self, path: str) -> str:
        """The normalised path of a file that does not exist and may be made. Raises `NotEditable`."""
        name = self._named(path)
        if name in self.files or name in self.created or os.path.lexists(self.root / name):
            raise NotEditable(
                _("{path} exists already; give the text that is to be replaced.").format(path=name)
                if name in self.files or name in self.created
                else self._refusal(name)
            )
        why = self._unfit_new(name)
        if why:
            raise NotEditable(
                _("{path} may not be made: {why}. New files may stand in: {folders}.").format(
                    path=name, why=why, folders=", ".join(folder or "." for folder in self.new_below)
                )
            )
        return name

    def describe(self) -> str:
        """The editable files, one a line."""
        return "\n".join(sorted(self.files | self.created))

    def _named(self, path: str) -> str:
        """The path without ``.`` and doubled slashes. Raises `NotEditable` for one that leads elsewhere."""
        if not path or "\0" in path or "\\" in path or any(ord(char) < 32 for char in path):
            raise NotEditable(_("{path!r} is no path of a file.").format(path=path))
        if path.startswith(("/", "~")):
            raise NotEditable(
                _("{path} is absolute; name files relative to the project's root. {which}").format(
                    path=path, which=self._which()
                )
            )
        parts = PurePosixPath(path).parts
        if ".." in parts:
            raise NotEditable(
                _("{path} leads upwards; name files relative to the project's root.").format(path=path)
            )
        if any(part.casefold() in _OFF_LIMITS for part in parts):
            raise NotEditable(_("{path} is not part of the source.").format(path=path))
        return "/".join(parts)

    def _refusal(self, name: str) -> str:
        twins = [known for known in self.files | self.created if _folded(known) == _folded(name)]
        if twins:
            return _("{path} is written {known}.").format(path=name, known=twins[0])
        if os.path.lexists(self.root / name):
            return _("{path} may not be edited. {which}").format(path=name, which=self._which())
        return _("{path} does not exist. {which}").format(path=name, which=self._which())

    def _which(self) -> str:
        names = sorted(self.files | self.created)
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        return _("Editable files: {files}.").format(files=shown)

    def _unfit_new(self, name: str) -> str:
        folder, path = _folder(name), PurePosixPath(name)
        if not any(
            folder == place or (self.recursive and _within(folder, place)) for place in self.new_below
        ):
            return _("it is outside the editable folders")
        if path.suffix.lower() not in NEW_SUFFIXES:
            return _("its name must end with {suffixes}").format(suffixes=", ".join(sorted(NEW_SUFFIXES)))
        if (
            any(_folded(part) in GPU_HEADER_FOLDERS for part in path.parts[:-1])
            and not (self.root / folder).exists()
        ):
            return _("the toolkit has a folder of that name")
        if _BUILD_FILE.fullmatch(path.name):
            return _("the name belongs to a build or to Python's start")
        if _has_link(self.root, folder):
            return _("its folder is reached through a link")
        return self._shadowed(path)

    def _shadowed(self, path: PurePosixPath) -> str:
        name = _folded(path.name)
        for known in self._tracked:
            if _folded(known) == _folded(str(path)):
                return _("{known} exists, written otherwise").format(known=known)
            if _folded(PurePosixPath(known).name) == name:
                return _("it could be taken for {known}").format(known=known)
        texts = [
            _text(self.root, known) for known in self._tracked if _suffix(known) in CPP_SUFFIXES | {".py"}
        ]
        if path.suffix == ".py":
            taken = set(sys.stdlib_module_names) | {
                found for text in texts for found in _IMPORT.findall(text)
            }
            return _("it could be taken for a module of that name") if path.stem in taken else ""
        included = {_folded(PurePosixPath(found).name) for text in texts for found in _INCLUDE.findall(text)}
        if name in included or name in _system_headers():
            return _("it could be taken for a header of that name")
        return ""


def _limit(root: Path, entry: str) -> str:
    path = PurePosixPath(entry)
    if path.is_absolute():
        try:
            path = PurePosixPath(Path(entry).resolve().relative_to(root))
        except ValueError:
            path = PurePosixPath("..")
    if ".." in path.parts or any(part.casefold() in _OFF_LIMITS for part in path.parts):
        raise NothingEditable(
            _("allowed_edit_paths names {path}, which is not part of the project.").format(path=entry),
            _("Name files or folders relative to {root}, for example src/kernels/.").format(root=root),
        )
    return "" if str(path) == "." else str(path)


def _within(path: str, limit: str) -> bool:
    return not limit or path == limit or path.startswith(limit + "/")


def _folder(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _unfit(root: Path, path: str) -> str:
    """Why an existing file can never be edited; empty when it can."""
    name = PurePosixPath(path)
    if not path.isprintable():
        return _("its name holds characters that cannot be shown")
    if any(part.casefold() in _OFF_LIMITS for part in name.parts):
        return _("it is not part of the source")
    if _BUILD_FILE.fullmatch(name.name):
        return _("it belongs to the build")
    if _has_link(root, _folder(path)):
        return _("its folder is reached through a link")
    try:
        info = (root / path).lstat()
    except OSError:
        return _("it does not exist")
    if stat.S_ISLNK(info.st_mode):
        return _("it is a link")
    if not stat.S_ISREG(info.st_mode):
        return _("it is no regular file")
    if info.st_nlink > 1:
        return _("it has a second name (a hard link), which would be changed with it")
    if info.st_size > MAX_FILE_BYTES:
        return _("it is larger than {limit} bytes").format(limit=MAX_FILE_BYTES)
    return ""


def _has_link(root: Path, folder: str) -> bool:
    """Whether a component of the folder below the root is a link, or belongs to another file system's view of it."""
    place = root
    for part in PurePosixPath(folder).parts:
        place = place / part
        if place.is_symlink():
            return True
        if not place.exists():
            return False
    return place.resolve() != place


def _text(root: Path, path: str) -> str:
    """The text of a source file; empty when it is missing, too large or reached through a link."""
    if _unfit(root, path) and not _BUILD_FILE.fullmatch(PurePosixPath(path).name):
        return ""
    return (root / path).read_text(encoding="utf-8", errors="replace") if (root / path).is_file() else ""


def _holding(
    root: Path, tracked: Collection[str], kernels: frozenset[str], source_files: Sequence[str]
) -> frozenset[str]:
    """Files that hold one of the kernels, its launch, or device functions that they call."""
    found = {path for path in tracked if any(_same_file(root, path, seen) for seen in source_files)}
    cpp = {path: _text(root, path) for path in tracked if _suffix(path) in CPP_SUFFIXES}
    found |= {path for path, text in cpp.items() if _mentions(text, kernels)}
    for path in tracked:
        if _suffix(path) == ".py":
            text = _text(root, path)
            if _TRITON.search(text) and any(re.search(rf"\b{re.escape(name)}\b", text) for name in kernels):
                found.add(path)
    devices = {path: names for path, text in cpp.items() if (names := _device_names(text)) is not None}
    for _step in range(HELPER_DEPTH):
        called = frozenset().union(*(devices[path][1] for path in found if path in devices))
        more = {path for path, (defined, _reads) in devices.items() if defined & called} - found
        found |= more
    return frozenset(found)


def _same_file(root: Path, path: str, seen: str) -> bool:
    """Whether ``seen``, a path as the compiler saw it, is the tracked file ``path``.

    A relative one is relative to the folder of the build, which nobody knows; an absolute one may be of another
    machine. Then equal ends must do.
    """
    if PurePosixPath(seen).is_absolute():
        return Path(seen) == root / path or (not Path(seen).exists() and seen.endswith("/" + path))
    parts = [part for part in PurePosixPath(os.path.normpath(seen)).parts if part != ".."]
    return ("/" + path).endswith("/" + "/".join(parts))


def _mentions(text: str, kernels: frozenset[str]) -> bool:
    """Whether a kernel's name stands in the code, not only in a comment or a string."""
    if not any(name in text for name in kernels):
        return False
    try:
        return any(token.kind == "id" and token.text in kernels for token in tokenise(text))
    except CannotTell:
        return any(re.search(rf"\b{re.escape(name)}\b", text) for name in kernels)


def _device_names(text: str) -> tuple[frozenset[str], frozenset[str]] | None:
    if "__device__" not in text and "__global__" not in text:
        return None
    try:
        return device_names(text)
    except CannotTell:
        return None


@cache
def _system_headers() -> frozenset[str]:
    """Names of the headers that compilers find by themselves on this machine, folded."""
    folders = [folder for pattern in _HEADER_FOLDERS for folder in Path("/").glob(pattern[1:])]
    names = {_folded(entry.name) for folder in folders if folder.is_dir() for entry in folder.iterdir()}
    return frozenset(names) | _STANDARD_HEADERS


# For a machine whose compiler keeps them elsewhere.
_STANDARD_HEADERS = GPU_HEADERS | frozenset(
    f"{name}.h"
    for name in re.findall(
        r"\w+",
        """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg
        stdatomic stdbool stddef stdio stdlib string tgmath threads time uchar unistd wchar wctype""",
    )
)
