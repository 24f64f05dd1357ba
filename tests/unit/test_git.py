"""Commits by plumbing in real repositories: only our files, only by compare-and-swap, nothing else touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tachyon_tui.workspace.git import GitProblem, HeadMoved, Repository

KERNEL = "__global__ void k(int* x) { x[threadIdx.x] = 1; }\n"
FASTER = "__global__ void k(int* x) { x[threadIdx.x] = 2; }\n"


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_", "EMAIL"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path))


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().strip()


def make(folder: Path, files: dict[str, str] | None = None, identity: bool = True) -> Repository:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.useConfigOnly", "true")
    if identity:
        git(folder, "config", "user.name", "Some One")
        git(folder, "config", "user.email", "one@example.org")
    for name, text in (
        files or {"k.cu": KERNEL, "src/other.cu": "// other\n", "README": "read me\n"}
    ).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return Repository.open(folder)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return make(tmp_path / "project")


def accept(repo: Repository, path: str = "k.cu", text: str = FASTER, **options: str | None) -> str:
    (repo.root / path).parent.mkdir(parents=True, exist_ok=True)
    (repo.root / path).write_bytes(text.encode())
    options.setdefault("expected_head", repo.head())
    head = options.pop("expected_head")
    assert head
    return repo.commit_files({path: text.encode()}, "faster\n\nbody", expected_head=head, **options)


def test_facts_of_a_repository(repo: Repository) -> None:
    assert Repository.open(repo.root / "src").root == repo.root
    assert repo.head() == git(repo.root, "rev-parse", "HEAD")
    assert repo.branch() == "main"
    assert repo.in_progress() == ""
    assert repo.tracked_files() == ("README", "k.cu", "src/other.cu")
    assert repo.dirty_tracked() == ()
    assert repo.show(repo.head(), "k.cu") == KERNEL.encode()
    assert repo.entry("HEAD", "k.cu").startswith("100644 ")
    assert repo.entry("HEAD", "none") == ""
    git(repo.root, "checkout", "-q", "--detach")
    assert repo.branch() == ""


def test_names_with_spaces_and_other_alphabets_come_through(tmp_path: Path) -> None:
    repo = make(tmp_path, {"src/核 心.cu": KERNEL, '"quoted".cu': "x\n"})
    assert set(repo.tracked_files()) == {"src/核 心.cu", '"quoted".cu'}
    accept(repo, "src/核 心.cu")
    assert repo.show("HEAD", "src/核 心.cu") == FASTER.encode()
    assert repo.dirty_tracked() == ()


def test_dirty_files_are_named_staged_or_not(repo: Repository) -> None:
    (repo.root / "README").write_text("changed\n")
    (repo.root / "k.cu").write_text("changed\n")
    git(repo.root, "add", "k.cu")
    (repo.root / "untracked").write_text("x")
    assert repo.dirty_tracked() == ("README", "k.cu")


def test_a_commit_holds_exactly_our_file_and_leaves_everything_else(repo: Repository) -> None:
    root = repo.root
    first = repo.head()
    (root / "README").write_text("staged by the user\n")
    git(root, "add", "README")
    (root / "README").write_text("and changed again\n")
    (root / "src/other.cu").write_text("// unstaged\n")
    (root / "new.txt").write_text("untracked\n")
    (root / "staged_new.txt").write_text("staged\n")
    git(root, "add", "staged_new.txt")
    commit = accept(repo)
    assert git(root, "rev-parse", "HEAD", "main").split() == [commit, commit]
    assert git(root, "rev-parse", "HEAD^") == first
    assert git(root, "show", "--format=%an %ae %B", "--name-status", "HEAD").split() == [
        *["Some", "One", "one@example.org", "faster", "body", "M", "k.cu"]
    ]
    status = git(root, "status", "--porcelain").splitlines()
    assert sorted(line.split()[-1] for line in status) == [
        "README",
        "new.txt",
        "src/other.cu",
        "staged_new.txt",
    ]
    assert {line[:2].strip() for line in status} == {"MM", "M", "A", "??"}
    assert git(root, "show", ":README") == "staged by the user"
    assert (root / "README").read_text() == "and changed again\n"


def test_new_and_removed_files_are_committed(repo: Repository) -> None:
    accept(repo, "src/deep/new.cuh", "// new\n")
    (repo.root / "src/deep/new.cuh").unlink()
    repo.commit_files({"src/deep/new.cuh": None}, "gone", expected_head=repo.head())
    assert git(repo.root, "show", "--format=", "--name-status", "HEAD") == "D\tsrc/deep/new.cuh"
    assert repo.dirty_tracked() == ()
    assert "src/deep/new.cuh" not in repo.tracked_files()


def test_hooks_monitors_and_signing_do_not_run(repo: Repository) -> None:
    hooks = repo.root / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    names = [
        "pre-commit",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-index-change",
        "post-checkout",
    ]
    for name in names:
        (hooks / name).write_text(f"#!/bin/sh\ntouch {repo.root.parent}/ran-{name}\nexit 1\n")
        (hooks / name).chmod(0o755)
    git(repo.root, "config", "commit.gpgSign", "true")
    git(repo.root, "config", "gpg.program", "/bin/false")
    git(repo.root, "config", "core.fsmonitor", f"touch {repo.root.parent}/ran-monitor; false")
    accept(repo)
    assert list(repo.root.parent.glob("ran-*")) == []


def test_the_executable_bit_is_kept(repo: Repository) -> None:
    (repo.root / "tool.py").write_text("#!/usr/bin/env python\n")
    (repo.root / "tool.py").chmod(0o755)
    git(repo.root, "add", "tool.py")
    git(repo.root, "commit", "-qm", "tool")
    accept(repo, "tool.py", "#!/usr/bin/env python3\n")
    assert repo.entry("HEAD", "tool.py").startswith("100755 ")
    assert repo.dirty_tracked() == ()


@pytest.mark.parametrize(
    ("setting", "attributes", "old", "new"),
    [
        ("true", "", "a\nb\n", "a\r\nb\r\nc\r\n"),
        ("true", "", "a\r\nb\r\n", "a\r\nb\r\nc\r\n"),
        ("input", "", "a\nb\n", "a\r\nb\r\nc\r\n"),
        ("false", "*.cu text eol=crlf\n", "a\nb\n", "a\r\nb\r\nc\r\n"),
        ("false", "*.cu -text\n", "a\r\nb\r\n", "a\r\nb\r\nc\r\n"),
        ("false", "*.cu filter=up\n", "a\nb\n", "a\nb\nc\n"),
    ],
)
def test_the_blob_is_what_git_add_would_make(
    tmp_path: Path, setting: str, attributes: str, old: str, new: str
) -> None:
    ids = []
    for name in ("ours", "theirs"):
        root = tmp_path / name
        repo = make(root, {"k.cu": old, ".gitattributes": attributes})
        git(root, "config", "core.autocrlf", setting)
        git(root, "config", "filter.up.clean", "tr a-z A-Z")
        git(root, "config", "filter.up.smudge", "tr A-Z a-z")
        if name == "ours":
            accept(repo, text=new)
            assert repo.show("HEAD", "k.cu") == (new if setting != "input" else "a\nb\nc\n").encode()
        else:
            (root / "k.cu").write_bytes(new.encode())
            git(root, "add", "k.cu")
            git(root, "commit", "-qm", "by hand")
        ids.append(git(root, "rev-parse", "HEAD:k.cu"))
    assert ids[0] == ids[1]


def test_a_moved_head_stops_the_commit(repo: Repository) -> None:
    before = repo.head()
    git(repo.root, "commit", "-q", "--allow-empty", "-m", "by the user")
    moved = repo.head()
    with pytest.raises(HeadMoved):
        accept(repo, expected_head=before)
    assert repo.head() == moved
    assert (repo.root / "k.cu").read_text() == FASTER
    assert repo.dirty_tracked() == ("k.cu",)


def test_another_branch_at_the_same_commit_stops_the_commit(repo: Repository) -> None:
    git(repo.root, "switch", "-qc", "other")
    with pytest.raises(HeadMoved):
        accept(repo, expected_branch="main")
    accept(repo, expected_branch="other")
    assert repo.branch() == "other"


def test_a_file_that_is_not_as_given_stops_the_commit(repo: Repository) -> None:
    before = repo.head()
    (repo.root / "k.cu").write_text("by the user")
    with pytest.raises(GitProblem, match=r"k\.cu"):
        repo.commit_files({"k.cu": FASTER.encode()}, "m", expected_head=before)
    with pytest.raises(GitProblem, match=r"k\.cu"):
        repo.commit_files({"k.cu": None}, "m", expected_head=before)
    assert repo.head() == before


def test_something_else_staged_for_our_file_stops_the_commit(repo: Repository) -> None:
    before = repo.head()
    (repo.root / "k.cu").write_text("staged by the user\n")
    git(repo.root, "add", "k.cu")
    with pytest.raises(GitProblem, match="staged"):
        accept(repo)
    assert repo.head() == before
    assert git(repo.root, "show", ":k.cu") == "staged by the user"


def test_nothing_to_commit_is_said(repo: Repository) -> None:
    with pytest.raises(GitProblem, match="nothing to commit"):
        accept(repo, text=KERNEL)


def test_a_locked_index_stops_before_the_branch_moves(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tachyon_tui.workspace.git.LOCK_SECONDS", 0.1)
    before = repo.head()
    (repo.root / ".git/index.lock").touch()
    with pytest.raises(GitProblem, match="lock"):
        accept(repo)
    assert repo.head() == before


def test_a_commit_on_a_detached_head_and_in_a_linked_worktree(repo: Repository, tmp_path: Path) -> None:
    git(repo.root, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    linked = Repository.open(tmp_path / "linked")
    commit = accept(linked, expected_branch="")
    assert linked.head() == commit
    assert linked.dirty_tracked() == ()
    assert repo.head() != commit
    assert (repo.root / "k.cu").read_text() == KERNEL


def test_without_an_identity_the_commit_says_whose_it_is(tmp_path: Path) -> None:
    repo = make(tmp_path, identity=False)
    assert repo.fallback_identity() == "Tachyon <tachyon@localhost>"
    accept(repo)
    assert git(repo.root, "log", "-1", "--format=%an <%ae> %cn") == "Tachyon <tachyon@localhost> Tachyon"
    assert git(repo.root, "config", "--list").count("tachyon") == 0


def test_commits_to_a_new_branch_and_the_way_to_it_and_back(repo: Repository) -> None:
    main = repo.head()
    tip = repo.branch_tip("tuned")
    first = accept(repo, branch="tuned", expected_head=tip)
    second = accept(repo, text=FASTER + "// 2\n", branch="tuned", expected_head=first)
    assert (repo.head(), repo.branch()) == (main, "main")
    assert git(repo.root, "rev-list", "main..tuned").split() == [second, first]
    with pytest.raises(HeadMoved):
        accept(repo, text="x\n", branch="tuned", expected_head=first)
    (repo.root / "k.cu").write_text(FASTER + "// 2\n")
    assert repo.branch_tip("tuned") == second
    git(repo.root, "switch", "-q", "tuned")
    assert repo.dirty_tracked() == ()
    git(repo.root, "switch", "-q", "main")
    assert (repo.root / "k.cu").read_text() == KERNEL


def test_the_old_files_come_back_after_commits_to_another_branch(repo: Repository) -> None:
    accept(repo, branch="tuned", expected_head=repo.branch_tip("tuned"))
    git(repo.root, "restore", "--staged", "--worktree", "k.cu")
    assert (repo.root / "k.cu").read_text() == KERNEL
    assert repo.dirty_tracked() == ()


def test_branches_that_cannot_be_used_are_refused(repo: Repository, tmp_path: Path) -> None:
    git(repo.root, "switch", "-qc", "diverged")
    (repo.root / "src/other.cu").write_text("// of the branch\n")
    git(repo.root, "commit", "-qam", "other")
    git(repo.root, "switch", "-q", "main")
    git(repo.root, "worktree", "add", "-q", "-b", "elsewhere", str(tmp_path / "w"))
    for name, why in [("diverged", "src/other.cu"), ("elsewhere", "working tree"), ("a..b", "not a name")]:
        with pytest.raises(GitProblem, match=why) as caught:
            repo.branch_tip(name)
        assert caught.value.fix
    assert repo.branch_tip("main") == repo.head()


def start_merge(root: Path) -> None:
    git(root, "merge", "--no-commit", "--no-ff", "side")


def start_conflict(verb: str) -> Callable[[Path], None]:
    def start(root: Path) -> None:
        done = subprocess.run(["git", verb, "clash"], cwd=root, capture_output=True)
        assert done.returncode != 0

    return start


@pytest.mark.parametrize(
    ("what", "start"),
    [
        ("merge", start_merge),
        ("rebase", start_conflict("rebase")),
        ("cherry-pick", start_conflict("cherry-pick")),
        ("revert", lambda root: git(root, "revert", "--no-commit", "HEAD")),
        ("bisect", lambda root: git(root, "bisect", "start")),
    ],
)
def test_operations_under_way_are_named(repo: Repository, what: str, start: Callable[[Path], object]) -> None:
    root = repo.root
    git(root, "switch", "-qc", "side")
    git(root, "commit", "-q", "--allow-empty", "-m", "side")
    git(root, "switch", "-qc", "clash", "main")
    (root / "k.cu").write_text("clash\n")
    git(root, "commit", "-qam", "clash")
    git(root, "switch", "-q", "main")
    (root / "k.cu").write_text("main\n")
    git(root, "commit", "-qam", "main")
    start(root)
    assert repo.in_progress() == what


def test_a_submodule_is_not_ours(repo: Repository, tmp_path: Path) -> None:
    make(tmp_path / "lib")
    git(repo.root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "lib"), "lib")
    git(repo.root, "commit", "-qm", "lib")
    assert repo.tracked_files() == (".gitmodules", "README", "k.cu", "src/other.cu")


def test_places_without_a_usable_repository_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    (tmp_path / "unborn").mkdir()
    git(tmp_path / "unborn", "init", "-q", "-b", "main")
    for folder in ("plain", "bare.git"):
        with pytest.raises(GitProblem) as caught:
            Repository.open(tmp_path / folder)
        assert caught.value.fix
    unborn = Repository.open(tmp_path / "unborn")
    with pytest.raises(GitProblem, match="no commit yet"):
        unborn.head()
    assert unborn.branch() == "main"


def test_an_untrusted_repository_is_explained(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(GitProblem, match="does not trust") as caught:
        Repository.open(repo.root)
    assert caught.value.fix == f"git config --global --add safe.directory {repo.root}"


def test_the_own_exclude_file_gets_a_line_once(repo: Repository, tmp_path: Path) -> None:
    git(repo.root, "worktree", "add", "-q", str(tmp_path / "linked"))
    exclude = repo.root / ".git/info/exclude"
    exclude.write_text("last line without an end")
    for each in (repo, repo, Repository.open(tmp_path / "linked")):
        each.info_exclude("/.tachyon/sessions/")
    assert exclude.read_text() == "last line without an end\n/.tachyon/sessions/\n"
    (repo.root / ".tachyon/sessions").mkdir(parents=True)
    (repo.root / ".tachyon/sessions/x").touch()
    assert git(repo.root, "status", "--porcelain") == ""


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), data=st.data())
def test_whatever_is_committed_is_shown_again(repo: Repository, content: bytes, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(["k.cu", "src/other.cu", "made/up.cu"]))
    before = repo.head()
    file = repo.root / path
    old = file.read_bytes() if file.exists() else None
    if content == old:
        return
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    commit = repo.commit_files({path: content}, "m", expected_head=before)
    assert repo.show(commit, path) == content
    assert git(repo.root, "show", "--format=", "--name-only", commit) == path
    assert repo.dirty_tracked() == ()
