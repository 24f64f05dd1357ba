"""The editable set holds the kernels' files and nothing that leads elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tachyon_tui.workspace.editable import EditableSet, NotEditable, NothingEditable

PROJECTS = Path(__file__).parents[1] / "projects" / "cuda"


def make(root: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return sorted(files)


def project(tmp_path: Path, name: str) -> tuple[Path, list[str]]:
    root = tmp_path / name
    shutil.copytree(PROJECTS / name, root)
    return root, sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    ("name", "kernel", "files"),
    [
        ("cu_reduce", "reduce_kernel", {"reduce.cu"}),
        ("transpose", "transpose_naive", {"transpose.cu"}),
        ("matmul", "matmul_kernel", {"src/matmul.cu"}),
        ("faults", "fine", {"faults.cu"}),
    ],
)
@pytest.mark.parametrize("with_lines", [True, False])
def test_the_files_of_real_projects(
    tmp_path: Path, name: str, kernel: str, files: set[str], with_lines: bool
) -> None:
    root, tracked = project(tmp_path, name)
    seen = [f"/builds/elsewhere/{name}/{file}" for file in files] + ["/usr/include/vector_types.h"]
    found = EditableSet.find(root, tracked, kernels=[kernel], source_files=seen if with_lines else [])
    assert found.files == files
    assert found.describe() == "\n".join(files)


TREE = {
    "src/kernels/k.cu": '#include "ops.cuh"\n#include <cstdio>\n#include "hidden/device.hpp"\n'
    "__global__ void k(float* x) { x[threadIdx.x] = twice(x[0]); }\n"
    "void run(float* x) { k<<<1, 32>>>(x); }\n",
    "src/kernels/ops.cuh": "__device__ float twice(float x) { return 2 * helper(x); }\n",
    "src/deep/helper.cuh": "template <class T> __device__ T helper(T x) { return x; }\n",
    "src/deep/unrelated.cuh": "__device__ float nobody(float x) { return x; }\n",
    "src/main.cu": '// launches k\nvoid run(float*);\nint main() { const char* s = "k"; run(nullptr); }\n',
    "src/launcher.cpp": "extern void* k;\n",
    "src/vendor/lib.cu": "__global__ void other(int* x) {}\n",
    "tune.py": "import triton\n@triton.jit\ndef k(x): pass\n",
    "plain.py": "k = 1\n",
    "Makefile": "k: k.cu\n",
    "src/kernels/CMakeLists.txt": "# k\n",
    "notes.md": "k\n",
}


def find(root: Path, **options: object) -> EditableSet:
    tracked = make(root, TREE)
    return EditableSet.find(root, tracked, **{"kernels": ["k"], **options})


def test_kernel_device_functions_and_launch_are_found_by_name(tmp_path: Path) -> None:
    assert find(tmp_path).files == {
        "src/kernels/k.cu",
        "src/kernels/ops.cuh",
        "src/deep/helper.cuh",
        "src/launcher.cpp",
        "tune.py",
    }


def test_line_information_adds_files_and_reports_of_other_places_do_not(tmp_path: Path) -> None:
    seen = ["../src/vendor/lib.cu", "/usr/local/cuda/include/cub/cub.cuh", "/opt/x/unrelated.cuh"]
    assert "src/vendor/lib.cu" in find(tmp_path, source_files=seen).files
    assert "src/deep/unrelated.cuh" not in find(tmp_path, source_files=seen).files
    here = [str(tmp_path / "src/deep/unrelated.cuh")]
    assert "src/deep/unrelated.cuh" in find(tmp_path, source_files=here).files


def test_allowed_paths_narrow_and_never_widen(tmp_path: Path) -> None:
    assert find(tmp_path, allowed=["src/kernels/"]).files == {"src/kernels/k.cu", "src/kernels/ops.cuh"}
    assert find(tmp_path, allowed=["./src/kernels/k.cu"]).files == {"src/kernels/k.cu"}
    assert find(tmp_path, allowed=[str(tmp_path / "src/kernels")]).files == {
        "src/kernels/k.cu",
        "src/kernels/ops.cuh",
    }
    with pytest.raises(NothingEditable):
        find(tmp_path, allowed=["src/vendor"])


@pytest.mark.parametrize("entry", ["../elsewhere", "/etc", ".git/hooks", "no/such/folder", "src/.tachyon"])
def test_allowed_paths_that_lead_nowhere_are_errors_with_a_fix(tmp_path: Path, entry: str) -> None:
    with pytest.raises(NothingEditable) as caught:
        find(tmp_path, allowed=[entry])
    assert entry in caught.value.message
    assert caught.value.fix


def test_without_a_kernel_the_allowed_paths_are_the_set(tmp_path: Path) -> None:
    assert find(tmp_path, kernels=[], allowed=["src/kernels", "plain.py"]).files == {
        "src/kernels/k.cu",
        "src/kernels/ops.cuh",
        "plain.py",
    }
    with pytest.raises(NothingEditable, match="target kernel") as caught:
        find(tmp_path, kernels=[])
    assert "allowed_edit_paths" in caught.value.fix


def test_paths_are_normalised(tmp_path: Path) -> None:
    editable = find(tmp_path)
    assert editable.check("./src//kernels/./k.cu") == "src/kernels/k.cu"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "no path"),
        ("src/kernels/k.cu\0", "no path"),
        ("src\\kernels\\k.cu", "no path"),
        ("src/kernels/k.cu\n", "no path"),
        ("/etc/passwd", "absolute"),
        ("~/k.cu", "absolute"),
        ("../other/k.cu", "upwards"),
        ("src/../src/kernels/k.cu", "upwards"),
        (".git/config", "not part"),
        ("src/.GIT/config", "not part"),
        (".tachyon/evolve.toml", "not part"),
        ("src/kernels/K.CU", "is written src/kernels/k.cu"),
        ("src/main.cu", "may not be edited"),
        ("Makefile", "may not be edited"),
        ("src/kernels/CMakeLists.txt", "may not be edited"),
        ("src/kernels/none.cu", "does not exist"),
        ("src/kernels", "may not be edited"),
    ],
)
def test_other_paths_are_refused_with_a_plain_answer(tmp_path: Path, path: str, why: str) -> None:
    with pytest.raises(NotEditable, match=why):
        find(tmp_path).check(path)


def link(root: Path) -> str:
    (root / "src/kernels/k.cu").rename(root / "src/real.cu")
    (root / "src/kernels/k.cu").symlink_to(root / "src/real.cu")
    return "is a link"


def linked_folder(root: Path) -> str:
    (root / "src/kernels").rename(root / "src/real")
    (root / "src/kernels").symlink_to("real")
    return "through a link"


def hard_link(root: Path) -> str:
    os.link(root / "src/kernels/k.cu", root.parent / f"{root.name}-second.cu")
    return "hard link"


def pipe(root: Path) -> str:
    (root / "src/kernels/k.cu").unlink()
    os.mkfifo(root / "src/kernels/k.cu")
    return "no regular file"


def gone(root: Path) -> str:
    (root / "src/kernels/k.cu").unlink()
    return "does not exist"


def large(root: Path) -> str:
    (root / "src/kernels/k.cu").write_text("x" * 1_100_000)
    return "larger"


@pytest.mark.parametrize("change", [link, linked_folder, hard_link, pipe, gone, large])
def test_a_file_that_leads_elsewhere_is_out_before_and_after_the_start(
    tmp_path: Path, change: object
) -> None:
    assert callable(change)
    root = tmp_path / "p"
    root.mkdir()
    editable = find(root)
    why = change(root)
    with pytest.raises(NotEditable, match=why):
        editable.check("src/kernels/k.cu")
    later = EditableSet.find(root, list(TREE), kernels=["k"])
    assert "src/kernels/k.cu" not in later.files


@pytest.mark.parametrize(
    ("path", "allowed", "why"),
    [
        ("src/kernels/fast.cuh", [], ""),
        ("src/kernels/sub/fast.cuh", [], "outside"),
        ("src/kernels/sub/fast.cuh", ["src/kernels/"], ""),
        ("src/fast.cuh", ["src/kernels/"], "outside"),
        ("src/kernelsfast.cuh", ["src/kernels/"], "outside"),
        ("src/kernels/k.cu", [], "exists already"),
        ("src/kernels/CMakeLists.txt", [], "may not be edited"),
        ("src/kernels/OPS.cuh", [], "written otherwise"),
        ("src/deep/ops.cuh", [], "could be taken for src/kernels/ops.cuh"),
        ("src/kernels/device.hpp", [], "header of that name"),
        ("src/kernels/stdio.h", [], "header of that name"),
        ("src/kernels/Math.h", [], "header of that name"),
        ("src/kernels/cuda_runtime.h", [], "header of that name"),
        ("src/kernels/vector", [], "must end with"),
        ("src/kernels/run.sh", [], "must end with"),
        ("triton.py", [], "module of that name"),
        ("random.py", [], "module of that name"),
        ("conftest.py", [], "belongs to"),
        ("src/kernels/.hidden.cuh", [], "belongs to"),
        ("../fast.cuh", [], "upwards"),
        ("src/kernels/cub/evil.cuh", ["src"], "toolkit has a folder"),
        ("src/kernels/cuda_pipeline.h", [], "header of that name"),
    ],
)
def test_where_new_files_may_stand(tmp_path: Path, path: str, allowed: list[str], why: str) -> None:
    editable = find(tmp_path, allowed=allowed)
    if not why:
        assert editable.check_new(path) == path
        return
    with pytest.raises(NotEditable, match=why):
        editable.check_new(path)


def test_a_new_file_does_not_go_through_a_linked_folder(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    editable = find(root, allowed=["src"])
    (root / "src/out").symlink_to(tmp_path)
    with pytest.raises(NotEditable, match="through a link"):
        editable.check_new("src/out/new.cuh")


def test_a_file_that_was_made_may_be_edited(tmp_path: Path) -> None:
    editable = find(tmp_path)
    (tmp_path / "src/kernels/fast.cuh").write_text("//\n")
    with pytest.raises(NotEditable):
        editable.check("src/kernels/fast.cuh")
    editable.created.add("src/kernels/fast.cuh")
    assert editable.check("src/kernels/fast.cuh") == "src/kernels/fast.cuh"
