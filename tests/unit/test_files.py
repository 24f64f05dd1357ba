"""Looking at the files below a root, and emptying a folder."""

from __future__ import annotations

from pathlib import Path

from tachyon_tui.workspace.files import empty_folder, scan_files, signature


def test_a_scan_sees_every_file_and_link_but_not_through_links(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "a" / "b", root / ".git", root / "a" / ".tachyon", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    (root / "top").write_text("x")
    (root / "link").symlink_to(outside)
    (root / "a" / "broken").symlink_to("nowhere")
    found = scan_files(root)
    assert sorted(found) == ["a/b/file", "a/broken", "link", "top"]
    assert all(found[path] == signature(root / path) for path in found)


def test_a_folder_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    assert scan_files(tmp_path / "gone") == {}


def test_an_emptied_folder_is_there_and_empty(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    empty_folder(folder)
    (folder / "sub" / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_text("x")
    (folder / "file").write_text("x")
    (folder / "link").symlink_to(tmp_path)
    empty_folder(folder)
    assert list(folder.iterdir()) == []
    assert folder.exists()


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / "folder").symlink_to(tmp_path / "precious")
    empty_folder(tmp_path / "folder")
    assert (tmp_path / "precious" / "file").read_text() == "x"
    assert not (tmp_path / "folder").is_symlink()
    assert list((tmp_path / "folder").iterdir()) == []
