"""Edits find their place or say why not, files come back to the byte, and patches apply."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tachyon_tui.workspace.editable import EditableSet, NotEditable
from tachyon_tui.workspace.edits import EditProblem, apply_edit, decode_source
from tachyon_tui.workspace.problems import ForeignChange, Problem
from tachyon_tui.workspace.source_tree import FileState, Snapshot, SourceTree, patch

KERNEL = """\
__global__ void k(int* x) {
    const int i = threadIdx.x;
    if (i < 32) {
        x[i] = i;
    }
}
"""


def test_a_unique_place_is_replaced() -> None:
    result = apply_edit(KERNEL, "x[i] = i;", "x[i] = 2 * i;")
    assert result.text == KERNEL.replace("= i;", "= 2 * i;")
    assert (result.line, result.how) == (4, "exact")


@pytest.mark.parametrize(
    ("text", "old", "new", "expected", "how"),
    [
        ("a  \n  b\t\nc\n", "a\n  b\n", "A\n  B\n", "A\n  B\nc\n", "trailing spaces"),
        ("a\nb\n", "a  \nb ", "c", "c\n", "trailing spaces"),
        (
            KERNEL,
            "if (i < 32) {\n    x[i] = i;\n}",
            "if (i < 64) {\n    x[i] = i;\n    x[i]++;\n}\n",
            KERNEL.replace("32", "64").replace("= i;\n", "= i;\n        x[i]++;\n"),
            "indentation",
        ),
        (
            "\tif (a) {\n\t\tb();\n\t}\n",
            "if (a) {\n  b();\n}",
            "if (a) {\n  c();\n\n  d();\n}",
            "\tif (a) {\n\t\tc();\n\n\t\td();\n\t}\n",
            "indentation",
        ),
        ("  a\n  b\n", "    b\n", "    b\n    c\n", "  a\n  b\n  c\n", "indentation"),
        ("      a\n      b\n", "    a\n    b\n", "    a\n  b\n", "      a\n    b\n", "indentation"),
    ],
)
def test_slips_in_spaces_are_overlooked(text: str, old: str, new: str, expected: str, how: str) -> None:
    result = apply_edit(text, old, new)
    assert (result.text, result.how) == (expected, how)


def test_exact_comes_before_lenient() -> None:
    assert (
        apply_edit("  a = 1;\na = 1;  \n\na = 1;\nb\n", "a = 1;\nb", "c").text == "  a = 1;\na = 1;  \n\nc\n"
    )


@pytest.mark.parametrize(
    ("text", "old", "lines"),
    [
        ("a\nb\na\n", "a", "lines 1, 3"),
        ("aaa\n", "aa", "lines 1, 1"),
        ("a \nb\na \n", "a\n", "lines 1, 3"),
        ("  a = 1;\n  b\n    a = 1;\n    b\n", "a = 1;\nb", "lines 1, 3"),
        ("x\n" * 20, "x", "lines 1, 2, 3, 4, 5, 6, 7, 8, …"),
    ],
)
def test_more_than_one_place_is_refused_and_named(text: str, old: str, lines: str) -> None:
    with pytest.raises(EditProblem, match=lines):
        apply_edit(text, old, "new")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("", "x", "blank"),
        (" \n\t", "x", "blank"),
        ("x[i] = i;", "x[i] = i;", "the same"),
        ("        x[i] = i;  \n", "        x[i] = i;\n", "already reads"),
        ("x[i] = i;", "x\0", "NUL"),
        ("x[i] = i;", "\ud800", "surrogate"),
        ("x[i] = i;", "y" * 300_000, "smaller edits"),
        ("something else entirely, of no likeness", "x", "nothing is like it"),
    ],
)
def test_edits_that_cannot_be_meant_are_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(EditProblem, match=why):
        apply_edit(KERNEL, old, new)


def test_a_miss_shows_the_nearest_lines_with_their_numbers() -> None:
    with pytest.raises(EditProblem) as caught:
        apply_edit(KERNEL, "    if (i < 64) {\n        x[i] = i;\n", "")
    assert "3:     if (i < 32) {" in str(caught.value)
    with pytest.raises(EditProblem) as caught:
        apply_edit(KERNEL, "const int i = threadIdx.y;", "")
    assert "2:     const int i = threadIdx.x;" in str(caught.value)


def test_lines_whose_indentation_fits_no_rule_are_not_guessed_at() -> None:
    with pytest.raises(EditProblem) as caught:
        apply_edit("if a:\n    b()\n    c()\n", "if a:\nb()\nc()\n", "if a:\nd()\n")
    assert "1: if a:" in str(caught.value)


def test_a_miss_in_ten_thousand_lines_is_quick() -> None:
    text = "".join(f"    value_{i} = compute(input[{i}], weight_{i % 97});\n" for i in range(10_000))
    start = time.process_time()
    with pytest.raises(EditProblem, match="nearest"):
        apply_edit(text, "    value_777 = compute(inputs[777], weights_1, 3);\n", "x")
    assert time.process_time() - start < 5  # comparing every line with every other takes minutes


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", "x\r\ny\r\nz\r\nc\r\n"),
        ("a\r\nb\r\nc\r\n", "b", "x\ny", "a\r\nx\r\ny\r\nc\r\n"),
        ("a\r\nb\r\nc\r\n", "b\r\n", "x\r\n", "a\r\nx\r\nc\r\n"),
        ("  a \r\n  b\r\n", "a\nb", "x\ny", "  x\r\n  y\r\n"),
        ("a\r\nb\r\nc\nd\n", "c\nd", "x\ny", "a\r\nb\r\nx\ny\n"),
        ("a\nb", "b", "c\n", "a\nc"),
        ("a\nb", "b\n", "c\n", "a\nc"),
        ("a\nb\n", "b\n", "c", "a\nc\n"),
        ("a\r\nb", "a\nb\n", "c\nd\n", "c\r\nd"),
        ("a\nb\n", "b\n", "", "a\n"),
        ("\ufeffa\nb\n", "b", "c", "\ufeffa\nc\n"),
    ],
)
def test_line_ends_stay_as_the_file_has_them(text: str, old: str, new: str, expected: str) -> None:
    assert apply_edit(text, old, new).text == expected


@pytest.mark.parametrize(
    ("data", "why"), [(b"a\0b", "binary"), (b"caf\xe9", "byte 3 is 0xe9"), (b"x" * 1_100_000, "larger")]
)
def test_files_that_are_no_text_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(EditProblem, match=why):
        decode_source(data)


lines = st.lists(st.sampled_from(["a", "b", "  c", "\td", "e ", "", "}", "ü"]), min_size=1, max_size=8)


@given(
    before=lines, old=lines, after=lines, new=lines, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans()
)
def test_an_edit_and_its_reverse_give_the_file_back(
    before: list[str], old: list[str], after: list[str], new: list[str], end: str, last: bool
) -> None:
    mark = ["// only here"]
    text = end.join([*before, *old, *mark, *after]) + (end if last else "")
    assume(new != old)
    old_text, new_text = "\n".join([*old, *mark]), "\n".join([*new, *mark])
    edited = apply_edit(text, old_text, new_text)
    assert edited.text == end.join([*before, *new, *mark, *after]) + (end if last else "")
    assert apply_edit(edited.text, new_text, old_text).text == text


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src/k.cu").write_text(KERNEL)
    (root / "src/other.cu").write_bytes(b"// other\r\nint x;")
    names = ["src/k.cu", "src/other.cu"]
    editable = EditableSet(root, names, ["src"], names)
    return SourceTree(root.resolve(), editable)


def test_an_edit_is_written_and_told(tree: SourceTree) -> None:
    edit = tree.edit("./src//k.cu", "x[i] = i;", "x[i] = 2 * i;\n        x[i]++;")
    assert "2 * i" in (tree.root / "src/k.cu").read_text() == tree.read("src/k.cu")
    assert (edit.path, edit.added, edit.removed, edit.line) == ("src/k.cu", 2, 1, 4)
    assert "-        x[i] = i;\n+        x[i] = 2 * i;\n" in edit.diff
    assert tree.changed_since_snapshot() == ("src/k.cu",)


def test_lines_that_look_like_a_patch_header_are_counted(tree: SourceTree) -> None:
    edit = tree.edit("src/k.cu", "        x[i] = i;", "--x[i];\n++ x[i];")
    assert (edit.added, edit.removed) == (2, 1)


def test_restoring_brings_back_bytes_modes_and_absence(tree: SourceTree) -> None:
    (tree.root / "src/k.cu").chmod(0o755)
    tree.adopt()
    start = tree.snapshot()
    original = (tree.root / "src/k.cu").read_bytes()
    tree.edit("src/k.cu", "i < 32", "i < 64")
    middle = tree.snapshot()
    tree.create("src/new.cuh", "// new\n")
    tree.edit("src/new.cuh", "new", "newer")
    assert tree.restore(middle) == ("src/new.cuh",)
    assert not (tree.root / "src/new.cuh").exists()
    assert tree.restore(start) == ("src/k.cu",)
    assert (tree.root / "src/k.cu").read_bytes() == original
    assert (tree.root / "src/k.cu").stat().st_mode & 0o777 == 0o755
    assert tree.matches(start)
    assert tree.restore(middle) == ("src/k.cu",)
    assert tree.matches(middle)
    assert tree.restore(middle) == ()


def test_a_removed_file_of_a_later_state_comes_back_editable(tree: SourceTree) -> None:
    start = tree.snapshot()
    tree.create("src/new.cuh", "// new\n")
    later = tree.snapshot()
    tree.restore(start)
    tree.restore(later)
    assert tree.edit("src/new.cuh", "new", "old").path == "src/new.cuh"


def test_every_write_has_a_newer_modification_time(tree: SourceTree) -> None:
    path = tree.root / "src/k.cu"
    start = tree.snapshot()
    future = time.time_ns() + 10**12
    os.utime(path, ns=(future, future))
    tree.edit("src/k.cu", "32", "64")
    edited = path.stat().st_mtime_ns
    assert edited > future
    built = tree.root / "built"
    built.touch()
    tree.restore(start)
    assert path.stat().st_mtime_ns > edited
    other = tree.root / "src/other.cu"
    before = other.stat().st_mtime_ns
    tree.touch()
    assert other.stat().st_mtime_ns > max(before, built.stat().st_mtime_ns)
    assert tree.foreign_changes() == ()


def test_somebody_elses_change_is_never_overwritten(tree: SourceTree) -> None:
    start = tree.snapshot()
    tree.edit("src/k.cu", "32", "64")
    tree.edit("src/other.cu", "int x", "int y")
    tree.create("src/new.cuh", "// new\n")
    (tree.root / "src/new.cuh").write_text("// by a person\n")
    (tree.root / "src/k.cu").write_text("by a person\n")
    assert tree.foreign_changes() == ("src/k.cu", "src/new.cuh")
    with pytest.raises(ForeignChange) as caught:
        tree.restore(start)
    assert caught.value.paths == ("src/k.cu", "src/new.cuh")
    for action in (
        lambda: tree.edit("src/k.cu", "person", "x"),
        lambda: tree.read("src/k.cu"),
        tree.snapshot,
    ):
        with pytest.raises(ForeignChange):
            action()
    assert (tree.root / "src/k.cu").read_text() == "by a person\n"
    assert (tree.root / "src/new.cuh").read_text() == "// by a person\n"
    assert "int y" in (tree.root / "src/other.cu").read_text()
    tree.adopt()
    assert tree.read("src/k.cu") == "by a person\n"
    assert tree.read("src/new.cuh") == "// by a person\n"


def test_a_file_put_where_we_removed_one_is_a_foreign_change(tree: SourceTree) -> None:
    start = tree.snapshot()
    tree.create("src/new.cuh", "// new\n")
    later = tree.snapshot()
    tree.restore(start)
    (tree.root / "src/new.cuh").write_text("by a person")
    with pytest.raises(ForeignChange):
        tree.restore(later)
    assert (tree.root / "src/new.cuh").read_text() == "by a person"


def test_a_file_replaced_by_a_link_is_not_followed(tree: SourceTree) -> None:
    start = tree.snapshot()
    tree.edit("src/k.cu", "32", "64")
    outside = tree.root.parent / "outside.cu"
    outside.write_text((tree.root / "src/k.cu").read_text())
    (tree.root / "src/k.cu").unlink()
    (tree.root / "src/k.cu").symlink_to(outside)
    with pytest.raises(ForeignChange):
        tree.restore(start)
    with pytest.raises(NotEditable):
        tree.edit("src/k.cu", "64", "128")
    assert "64" in outside.read_text()


def test_folders_made_for_new_files_go_with_them_when_empty(tree: SourceTree) -> None:
    start = tree.snapshot()
    tree.create("src/a/b/new.cuh", "// new\n")
    tree.create("src/c/new2.cuh", "// new\n")
    (tree.root / "src/c/of_a_person").touch()
    tree.restore(start)
    assert not (tree.root / "src/a").exists()
    assert (tree.root / "src/c/of_a_person").exists()


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [("src/n.cuh", " \n", "blank"), ("src/n.cuh", "\0", "NUL"), ("src/n.cuh", "x" * 1_100_000, "larger")],
)
def test_new_files_that_are_no_source_are_refused(tree: SourceTree, path: str, text: str, why: str) -> None:
    with pytest.raises(EditProblem, match=why):
        tree.create(path, text)
    assert not (tree.root / path).exists()


def test_a_file_that_cannot_be_written_is_named_and_left(tree: SourceTree) -> None:
    (tree.root / "src/.k.cu.tachyon-part").mkdir()
    with pytest.raises(Problem, match="cannot be written") as caught:
        tree.edit("src/k.cu", "32", "64")
    assert caught.value.fix
    assert tree.read("src/k.cu") == KERNEL


def test_a_link_in_the_way_of_writing_is_not_followed(tree: SourceTree) -> None:
    outside = tree.root.parent / "outside"
    outside.write_text("precious")
    (tree.root / "src/.k.cu.tachyon-part").symlink_to(outside)
    tree.edit("src/k.cu", "32", "64")
    assert outside.read_text() == "precious"


def test_a_snapshot_survives_a_file(tree: SourceTree) -> None:
    tree.edit("src/other.cu", "x", "größe")
    snapshot = tree.snapshot()
    snapshot.save(tree.root / "s.json")
    assert Snapshot.load(tree.root / "s.json") == snapshot
    again = SourceTree(tree.root, tree.editable)
    assert again.matches(snapshot)


content = st.one_of(
    st.none(),
    st.lists(
        st.sampled_from(["a\n", "b\n", "-c\n", "+d\r\n", "--- x\n", "ü\n", "\x0c\n", "no end"]), max_size=9
    )
    .map("".join)
    .map(str.encode),
)
names = st.sampled_from(["src/k.cu", "src/with space.cu", "src/ünï.cu", 'src/q"uote\t.cu', "top.cu"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=names, before=content, after=content, mode=st.sampled_from([0o644, 0o755]))
def test_git_applies_our_patches_and_their_reverse(
    tmp_path: Path, name: str, before: bytes | None, after: bytes | None, mode: int
) -> None:
    assume(before != after)
    root = tmp_path
    path = root / name
    path.parent.mkdir(exist_ok=True)

    def put(data: bytes | None) -> None:
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
            path.chmod(mode)

    put(before)
    text = patch(
        name,
        None if before is None else FileState(before, mode),
        None if after is None else FileState(after, mode),
    )
    (root / "p.patch").write_bytes(text.encode())
    for options, expected in ([], after), (["-R"], before):
        command = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", *options, "p.patch"]
        env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent), "GIT_CONFIG_GLOBAL": "/dev/null"}
        done = subprocess.run(command, cwd=root, capture_output=True, env=env)
        assert done.returncode == 0, done.stderr.decode() + text
        assert (path.read_bytes() if path.exists() else None) == expected
        if expected is not None:
            assert path.stat().st_mode & 0o100 == mode & 0o100


def test_a_patch_of_several_files(tree: SourceTree) -> None:
    start = tree.snapshot()
    tree.edit("src/k.cu", "32", "64")
    tree.create("src/new.cuh", "// new\n")
    text = tree.diff(start)
    assert text.count("diff --git ") == 2
    assert "new file mode 100644\n--- /dev/null\n+++ b/src/new.cuh\n" in text
    end = tree.snapshot()
    tree.restore(start)
    assert tree.diff(start, end) == text
    assert tree.diff(start) == ""
