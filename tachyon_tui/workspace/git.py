"""The user's repository, by plumbing only: nothing here checks out, cleans, resets, stashes or adds by pattern.

Every git runs without hooks, file-system monitors, prompts and optional locks, in the C locale, with a deadline.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from tachyon_tui.core.i18n import _
from tachyon_tui.workspace.problems import Problem

try:
    from git.cmd import Git
    from git.exc import GitCommandError, GitCommandNotFound

    _IMPORT_ERROR = ""
except ImportError as error:  # GitPython refuses to be imported where there is no git program
    _IMPORT_ERROR = str(error).strip().splitlines()[0]

DEADLINE_SECONDS = 120.0
LOCK_SECONDS = 5.0
FALLBACK_NAME, FALLBACK_EMAIL = "Tachyon", "tachyon@localhost"
SUBMODULE, SYMLINK = "160000", "120000"
_QUIET = (
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.fsmonitor=false",
    "-c", "core.quotePath=false",
    "-c", "i18n.commitEncoding=UTF-8",
    "-c", "advice.graftFileDeprecated=false",
)  # fmt: skip
_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
T = TypeVar("T")


class GitProblem(Problem):
    """The repository cannot be used as it is."""


class HeadMoved(GitProblem):
    """HEAD or the branch is not where we left it; nothing was written."""


class _Entry(NamedTuple):
    """What a tree or the index holds for one path."""

    mode: str
    blob: str


class Repository:
    """A working tree with a repository; paths are relative to its root, with forward slashes."""

    def __init__(self, root: Path, git: Git) -> None:
        self.root = root
        self.warning = ""
        """What went wrong after the last commit was made; empty when nothing did."""
        self._git = git

    @classmethod
    def open(cls, folder: Path) -> Repository:
        """The repository whose working tree holds ``folder``. Raises `GitProblem`."""
        if _IMPORT_ERROR:
            raise GitProblem(_("git was not found."), _("Install git, version 2.20 or newer."))
        git = Git(str(folder))
        git.update_environment(LC_ALL="C", GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0")
        try:
            top = _run(git, "rev-parse", "--show-toplevel")
        except GitProblem as problem:
            raise _explain(problem, folder) from problem
        if not top:
            raise GitProblem(
                _("{folder} is inside a repository without a working tree.").format(folder=folder),
                _("Start in a checked-out copy of the project."),
            )
        root = Path(os.fsdecode(top)).resolve()
        inside = Git(str(root))
        inside.update_environment(**git.environment())
        return cls(root, inside)

    def head(self) -> str:
        """The id of the commit that is checked out. Raises `GitProblem` when there is none yet."""
        commit = self._resolve("HEAD")
        if not commit:
            raise GitProblem(
                _("The branch {branch} has no commit yet.").format(branch=self.branch() or "HEAD"),
                _("Make a first commit: git add FILES && git commit"),
            )
        return commit

    def branch(self) -> str:
        """The branch that is checked out; empty when HEAD is detached."""
        status, name = self._try("symbolic-ref", "-q", "--short", "HEAD")
        return name if status == 0 else ""

    def in_progress(self) -> str:
        """``merge``, ``rebase``, ``cherry-pick``, ``revert`` or ``bisect`` when one has been begun and not ended."""
        for name, what in _UNDER_WAY.items():
            if self._git_path(name).exists():
                return what
        return ""

    def dirty_tracked(self) -> tuple[str, ...]:
        """Tracked files that differ from HEAD, in the index or on disk."""
        out = self._run(
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=no",
            "--ignore-submodules=all",
            "--no-renames",
        )
        return tuple(sorted({entry[3:] for entry in out.split("\0") if entry}))

    def tracked_files(self) -> tuple[str, ...]:
        """All files in the index, without submodules."""
        index = self._index()
        return tuple(sorted(path for path, entry in index.items() if entry.mode != SUBMODULE))

    def show(self, commit: str, path: str) -> bytes:
        """The content of ``path`` in ``commit`` as a checkout would write it. Raises `GitProblem` without one."""
        return self._bytes("cat-file", "--filters", f"{commit}:{path}")

    def entry(self, commit: str, path: str) -> str:
        """Mode and id of what ``commit`` holds at ``path``; empty when nothing."""
        found = self._tree(commit, [path]).get(path)
        return f"{found.mode} {found.blob}" if found else ""

    def fallback_identity(self) -> str:
        """The name and address that commits will carry because git knows none for this user; else empty."""
        known = all(self._try("var", f"GIT_{who}_IDENT")[0] == 0 for who in ("AUTHOR", "COMMITTER"))
        return "" if known else f"{FALLBACK_NAME} <{FALLBACK_EMAIL}>"

    def info_exclude(self, pattern: str) -> None:
        """Add a line to the repository's own exclude file unless it is there; .gitignore is the user's."""
        path = self._git_path("info/exclude")
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
        if pattern in text.splitlines():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(("" if not text or text.endswith("\n") else "\n") + pattern + "\n")

    def branch_tip(self, branch: str) -> str:
        """The commit that the first commit on ``branch`` must have as its parent: its tip, or HEAD when it is new.

        An existing branch that is not checked out is fit only when the working tree holds what it holds: where
        it differs from HEAD, the file on disk must be the branch's (accepted work of an earlier session). Else a
        commit there would be of code that was never built together. Raises `GitProblem` when it is unfit, when its
        name is not allowed, or when it is checked out in another working tree, where moving it would do harm.
        """
        if self._try("check-ref-format", "--branch", branch)[0] != 0:
            raise GitProblem(
                _("{branch!r} is not a name for a branch.").format(branch=branch),
                _("Choose another name for --branch."),
            )
        if branch == self.branch():
            return self.head()
        trees = self._run("worktree", "list", "--porcelain").splitlines()
        if f"branch refs/heads/{branch}" in trees:
            raise GitProblem(
                _("The branch {branch} is checked out in another working tree.").format(branch=branch),
                _("Start there, or choose another name for --branch."),
            )
        tip = self._resolve(f"refs/heads/{branch}")
        if not tip:
            return self.head()
        differing = _paths(self._run("diff-tree", "-r", "-z", "--name-only", self.head(), tip))
        unlike = [path for path in differing if not self._on_disk_as_in(tip, path)]
        if unlike:
            raise GitProblem(
                _("The branch {branch} holds other files than the working tree: {files}.").format(
                    branch=branch, files=", ".join(unlike[:5])
                ),
                _("Check it out with git switch {branch}, or choose a new name for --branch.").format(
                    branch=branch
                ),
            )
        return tip

    def commit_files(
        self,
        paths: Mapping[str, bytes | None],
        message: str,
        branch: str | None = None,
        *,
        expected_head: str,
        expected_branch: str | None = None,
    ) -> str:
        """Commit exactly ``paths``, with the content that is on disk; return the id of the new commit.

        ``paths`` says what the caller believes to be on disk (None: removed). The blobs are what ``git add`` would
        make of the files (attributes, line ends, modes). The commit goes on ``branch`` or on what is checked out;
        that ref must be at ``expected_head`` (for a new branch: where it is to begin) and moves by
        compare-and-swap. ``expected_branch`` is the branch that must still be checked out ("" for a detached HEAD,
        None for any). No hook, no signature. Then exactly these entries of the user's index become the new commit's.

        With a ``branch`` that is not checked out the working tree keeps the accepted files as well, because they
        are what is built and measured next, and the index entries are set all the same: then
        ``git switch BRANCH`` goes through without a conflict (with other entries git refuses, though the files are
        equal), and ``git restore --staged --worktree FILE`` brings the old ones back.

        Raises `HeadMoved` when HEAD, the branch or the ref is not as expected, `GitProblem` when a file is not as
        given, something else is staged for it, or git fails. In both cases no ref has moved.
        """
        if not paths:
            raise ValueError("no paths to commit")
        checked_out = self.branch()
        if expected_branch is not None and checked_out != expected_branch:
            raise self._moved(expected_branch or "HEAD", checked_out or "HEAD")
        if branch is None or branch == checked_out:
            ref = f"refs/heads/{checked_out}" if checked_out else "HEAD"
        else:
            ref = f"refs/heads/{branch}"
        now = self._resolve(ref)
        begins = not now and branch is not None and branch != checked_out
        if (self.head() if begins else now) != expected_head:
            raise self._moved(expected_head, now)
        before = self._tree(expected_head, list(paths))
        self._check_disk(paths)
        tree, after = self._write_tree(expected_head, paths)
        self._check_disk(paths)
        self._check_index(paths, before, after)
        commit = self._commit_tree(tree, expected_head, message)
        self._wait_for_lock()
        status, why = self._try(
            "update-ref", "--no-deref", "-m", "tachyon: accepted", ref, commit, now or "0" * len(commit)
        )
        if status != 0:
            if self._resolve(ref) != now:
                raise self._moved(expected_head, self._resolve(ref))
            raise GitProblem(_("git could not move {ref}: {why}").format(ref=ref, why=why))
        self.warning = ""
        try:
            self._set_index(paths, after, len(commit))
        except GitProblem as problem:
            self.warning = _("The commit was made, but the index was not brought along: {why}").format(
                why=problem.message
            )
        return commit

    def check_head(self, commit: str, branch: str) -> None:
        """Raise `HeadMoved` unless ``commit`` and ``branch`` ("" for a detached HEAD) are still checked out."""
        found = self.branch()
        if found != branch:
            raise self._moved(branch or "HEAD", found or "HEAD")
        if self.head() != commit:
            raise self._moved(commit, self.head())

    def _write_tree(self, parent: str, paths: Mapping[str, bytes | None]) -> tuple[str, dict[str, _Entry]]:
        """The parent's tree with the given files, made in an index of our own from the files on disk.

        ``hash-object --path`` would not do: it does not see that a file has CRLF in the index already, and would
        convert its line ends where ``git add`` leaves them alone.
        """
        with tempfile.TemporaryDirectory(prefix="tachyon-index-") as folder:
            env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._run("read-tree", parent, env=env)
            for remove in (True, False):
                some = [path for path, content in paths.items() if (content is None) == remove]
                if some:
                    self._run("update-index", "--force-remove" if remove else "--add", "--", *some, env=env)
            tree = self._run("write-tree", env=env)
        changed = _paths(self._run("diff-tree", "-r", "-z", "--name-only", parent, tree))
        if not changed:
            raise GitProblem(
                _("There is nothing to commit: git sees no difference in {files}.").format(
                    files=", ".join(paths)
                ),
                _("Only line ends that git converts may have changed; see `git diff`."),
            )
        if not set(changed) <= set(paths):
            raise GitProblem(
                _("The commit would hold other files: {files}.").format(files=", ".join(changed))
            )
        return tree, self._tree(tree, list(paths))

    def _commit_tree(self, tree: str, parent: str, message: str) -> str:
        env = {}
        if self.fallback_identity():
            for who in ("AUTHOR", "COMMITTER"):
                env.update({f"GIT_{who}_NAME": FALLBACK_NAME, f"GIT_{who}_EMAIL": FALLBACK_EMAIL})
        return self._run("commit-tree", tree, "-p", parent, "-F", "-", env=env, stdin=message.encode())

    def _check_disk(self, paths: Mapping[str, bytes | None]) -> None:
        for path, content in paths.items():
            file = self.root / path
            held = file.read_bytes() if file.is_file() and not file.is_symlink() else None
            if held != content or (held is None and os.path.lexists(file)):
                raise GitProblem(
                    _("{path} changed while it was being committed.").format(path=path),
                    _("Look at `git diff {path}`; nothing was committed.").format(path=path),
                )

    def _check_index(
        self, paths: Mapping[str, bytes | None], before: dict[str, _Entry], after: dict[str, _Entry]
    ) -> None:
        index = self._index()
        for path in paths:
            if index.get(path) not in (before.get(path), after.get(path)):
                raise GitProblem(
                    _("Something else is staged for {path}.").format(path=path),
                    _("Commit or unstage it: git restore --staged {path}").format(path=path),
                )

    def _set_index(
        self, paths: Mapping[str, bytes | None], entries: dict[str, _Entry], id_length: int
    ) -> None:
        lines = []
        for path in paths:
            entry = entries.get(path)
            mode, blob = entry or ("0", "0" * id_length)
            lines.append(f"{mode} {blob}\t{path}\0")
        text = "".join(lines).encode("utf-8", "surrogateescape")
        self._wait_for_lock()
        try:
            self._retry_locked(lambda: self._run("update-index", "-z", "--index-info", stdin=text))
        except GitProblem as problem:
            raise GitProblem(
                _("The commit was made, but the index could not be updated: {why}").format(
                    why=problem.message
                ),
                _("When no other git runs any more: git reset -q -- {files}").format(files=" ".join(paths)),
            ) from problem

    def _wait_for_lock(self) -> None:
        """Give another git, such as an editor's, the time to let go of the index. Raises `GitProblem`."""
        lock = self._git_path("index.lock")
        end = time.monotonic() + LOCK_SECONDS
        while lock.exists():
            if time.monotonic() > end:
                raise GitProblem(
                    _("Another git holds {lock}.").format(lock=lock),
                    _("Wait until it has ended; if none runs, remove the file."),
                )
            time.sleep(0.05)

    def _retry_locked(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except GitProblem:
            self._wait_for_lock()
            return action()

    def _moved(self, expected: str, found: str) -> HeadMoved:
        return HeadMoved(
            _("HEAD or the branch moved: expected {expected}, found {found}.").format(
                expected=expected[:12], found=found[:12] or "-"
            ),
            _("Nothing was committed. Go back to where the session was, or start a new one."),
        )

    def _on_disk_as_in(self, commit: str, path: str) -> bool:
        file = self.root / path
        entry = self._tree(commit, [path]).get(path)
        if entry is None or entry.mode in (SUBMODULE, SYMLINK):
            return entry is None and not os.path.lexists(file)
        return file.is_file() and file.read_bytes() == self.show(commit, path)

    def _index(self) -> dict[str, _Entry]:
        out = self._run("ls-files", "-z", "--stage")
        rows = (row.split("\t", 1) for row in out.split("\0") if row)
        return {path: _Entry(*info.split()[:2]) for info, path in rows}

    def _tree(self, tree: str, paths: Sequence[str]) -> dict[str, _Entry]:
        out = self._run("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", tree, "--", *paths)
        rows = (row.split("\t", 1) for row in out.split("\0") if row)
        return {path: _Entry(info.split()[0], info.split()[2]) for info, path in rows}

    def _resolve(self, ref: str) -> str:
        status, commit = self._try("rev-parse", "-q", "--verify", f"{ref}^{{commit}}")
        return commit if status == 0 else ""

    def _git_path(self, name: str) -> Path:
        return self.root / self._run("rev-parse", "--git-path", name)

    def _run(self, *args: str, env: Mapping[str, str] | None = None, stdin: bytes | None = None) -> str:
        return os.fsdecode(_run(self._git, *args, env=env, stdin=stdin))

    def _bytes(self, *args: str) -> bytes:
        return _run(self._git, *args, strip=False)

    def _try(self, *args: str) -> tuple[int, str]:
        """Exit code, and what it printed (or complained of)."""
        code, out, err = _execute(self._git, args)
        return code, os.fsdecode(out or err).strip()


def _execute(
    git: Git,
    args: Sequence[str],
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    strip: bool = True,
) -> tuple[int, bytes, bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(stdin or b"")
        file.seek(0)
        try:
            code, out, err = git.execute(
                ["git", *_QUIET, *args],
                istream=file,
                env=dict(env or {}),
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=strip,
                kill_after_timeout=DEADLINE_SECONDS,
            )
        except GitCommandNotFound as error:
            raise GitProblem(_("git was not found."), _("Install git, version 2.20 or newer.")) from error
        except GitCommandError as error:
            raise GitProblem(_("git failed: {why}").format(why=error)) from error
    return code, _as_bytes(out), _as_bytes(err)


def _run(
    git: Git,
    *args: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    strip: bool = True,
) -> bytes:
    code, out, err = _execute(git, args, env, stdin, strip)
    if code != 0:
        raise GitProblem(
            _("git {verb} failed: {why}").format(
                verb=next((arg for arg in args if not arg.startswith("-")), ""),
                why=os.fsdecode(err).strip() or code,
            )
        )
    return out


def _as_bytes(value: str | bytes | None) -> bytes:
    return os.fsencode(value) if isinstance(value, str) else value or b""


def _paths(text: str) -> list[str]:
    return [path for path in text.split("\0") if path]


def _explain(problem: GitProblem, folder: Path) -> GitProblem:
    owner = re.search(r"dubious ownership in repository at '(.*)'", problem.message)
    if owner:
        return GitProblem(
            _("git does not trust {folder}, because it belongs to another user.").format(folder=owner[1]),
            f"git config --global --add safe.directory {owner[1]}",
        )
    if "not a git repository" in problem.message:
        return GitProblem(
            _("{folder} is not inside a git repository.").format(folder=folder),
            _("Make one: git init && git add FILES && git commit"),
        )
    if "must be run in a work tree" in problem.message:
        return GitProblem(
            _("{folder} is inside a repository without a working tree.").format(folder=folder),
            _("Start in a checked-out copy of the project."),
        )
    return problem
