"""Files that the program writes: deleted before each run, compared after it."""

from __future__ import annotations

import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath

from tachyon_tui.core.i18n import _
from tachyon_tui.workspace.files import SKIPPED, digest
from tachyon_tui.workspace.problems import Problem
from tachyon_tui.workspace.tokens import same_number, tokenise
from tachyon_tui.workspace.verify import Mismatch

MAX_TEXT_BYTES = 16 * 1024**2
"""A larger text is compared by its bytes alone."""


@dataclass(frozen=True)
class _Reference:
    digest: str
    text: str | None
    """None for a file that is no text, or too large."""


class Outputs:
    """The files of ``[verify] outputs``: equal to the byte, or texts whose numbers agree within the tolerance."""

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        *,
        protected: Collection[str] = (),
        rtol: float = 1e-4,
        atol: float = 1e-8,
    ) -> None:
        """``protected`` files are never deleted: tracked and editable ones, and what the build writes.

        Raises `Problem` for a path that is protected or leads out of the project.
        """
        self._root = root.resolve()
        self._rtol = rtol
        self._atol = atol
        self._paths = [self._checked(path, protected) for path in paths]
        self._references: dict[str, _Reference] = {}
        self._varying: set[str] = set()

    @property
    def checked(self) -> tuple[str, ...]:
        """The files that are compared; those whose content varies by itself are not."""
        return tuple(path for path in self._paths if path not in self._varying)

    def prepare(self) -> None:
        """Delete the files, so that none is left over from another run. Raises `Problem` when that cannot be done."""
        for path in self._paths:
            file = self._root / path
            if file.parent.resolve() != file.parent:
                raise Problem(
                    _("The folder of {path} is reached through a link; nothing was deleted.").format(
                        path=path
                    ),
                    _("Name the file where it really is in [verify] outputs."),
                )
            try:
                if stat.S_ISDIR(file.lstat().st_mode):
                    raise IsADirectoryError(21, "it is a folder", str(file))
                file.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Problem(
                    _("{path} cannot be deleted before a run: {why}.").format(path=path, why=error.strerror),
                    _("Correct [verify] outputs, or the permissions of its folder."),
                ) from error

    def record(self) -> tuple[str, ...]:
        """Learn from a run of the baseline or an incumbent; return the files found to vary by themselves, which are
        no longer compared. Raises `Problem` when such a run did not write a file."""
        fresh = []
        for path in self.checked:
            mismatch = self._mismatch(path)
            if path not in self._references:
                if mismatch:
                    raise Problem(
                        _("The program did not write {path}.").format(path=path),
                        _("Correct [verify] outputs; its paths are relative to {root}.").format(
                            root=self._root
                        ),
                    )
                self._references[path] = self._read(path)
            elif mismatch:
                self._varying.add(path)
                fresh.append(path)
        return tuple(fresh)

    def check(self) -> tuple[Mismatch, ...]:
        """What a candidate's run wrote otherwise; empty when all is well."""
        found = (self._mismatch(path) for path in self.checked)
        return tuple(mismatch for mismatch in found if mismatch)

    def describe(self) -> str:
        """What is compared, in one line; empty when there are no outputs."""
        if not self._paths:
            return ""
        checked = ", ".join(self.checked) or _("none")
        varying = ", ".join(sorted(self._varying))
        text = _("compares {files}").format(files=checked)
        return text + (
            _("; not {files}, which vary from run to run").format(files=varying) if varying else ""
        )

    def _checked(self, path: str, protected: Collection[str]) -> str:
        parts = PurePosixPath(path).parts
        name = "/".join(parts)
        fix = _("Name files that the program writes and git does not track, relative to {root}.").format(
            root=self._root
        )
        if not parts or PurePosixPath(path).is_absolute() or ".." in parts or SKIPPED & set(parts):
            raise Problem(
                _("[verify] outputs names {path!r}, which is not below the project.").format(path=path), fix
            )
        if name in protected:
            raise Problem(
                _("[verify] outputs names {path}, which must not be deleted.").format(path=name), fix
            )
        return name

    def _mismatch(self, path: str) -> Mismatch | None:
        file = self._root / path
        if file.is_symlink() or not file.is_file():
            return Mismatch(_("a file"), _("nothing was written"), path)
        reference = self._references.get(path)
        if reference is None or digest(file) == reference.digest:
            return None
        now = self._read(path)
        if reference.text is None or now.text is None:
            return Mismatch(_("the bytes of the baseline"), _("other bytes"), path)
        return self._compare(path, reference.text, now.text)

    def _compare(self, path: str, expected: str, got: str) -> Mismatch | None:
        for number, (old, new) in enumerate(
            zip_longest(expected.split("\n"), got.split("\n"), fillvalue=""), 1
        ):
            if old == new:
                continue
            for a, b in zip_longest(tokenise(old), tokenise(new)):
                if (
                    a
                    and b
                    and a.kind == b.kind == "number"
                    and same_number(a.text, b.text, self._rtol, self._atol)
                ):
                    continue
                if not a or not b or a.text != b.text or a.kind == "number":
                    where = _("{path} line {number}").format(path=path, number=number)
                    return Mismatch(a.text if a else _("nothing"), b.text if b else _("nothing"), where)
        return None

    def _read(self, path: str) -> _Reference:
        file = self._root / path
        total = digest(file)
        if file.stat().st_size > MAX_TEXT_BYTES:
            return _Reference(total, None)
        data = file.read_bytes()
        try:
            text = None if b"\0" in data else data.decode("utf-8")
        except UnicodeDecodeError:
            text = None
        return _Reference(total, text)
