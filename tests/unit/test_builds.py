"""Real builds with gcc and make: learned, kept, swapped to the byte; and tampering with other files is seen."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tachyon_tui.workspace.builds import BuildStore, CannotKeep
from tachyon_tui.workspace.files import scan_files, written
from tachyon_tui.workspace.tamper import Tamper

MAKEFILE = """\
prog: build/main.o build/libone.so
\tcc -o prog build/main.o -Lbuild -lone -Wl,-rpath,'$$ORIGIN/build'
\tln -sf prog latest
build/main.o: main.c
\tmkdir -p build
\tcc -c -o $@ $<
build/libone.so: one.c
\tmkdir -p build
\tcc -shared -fPIC -o $@ $<
"""
SOURCES = ("Makefile", "main.c", "one.c")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "Makefile").write_text(MAKEFILE)
    (root / "main.c").write_text(
        '#include <stdio.h>\nint one(void);\nint main(void) { printf("%d\\n", one()); }\n'
    )
    (root / "one.c").write_text("int one(void) { return 1; }\n")
    (root / ".git").mkdir()
    (root / ".git/index").write_text("x")
    return root


@pytest.fixture
def store(root: Path) -> BuildStore:
    return BuildStore(root, root / ".tachyon/sessions/s/builds")


def build(store: BuildStore) -> bool:
    """Run make; return whether it wrote anything."""
    before = store.scan()
    subprocess.run(["make", "-s"], cwd=store.root, check=True, capture_output=True)
    after = store.scan()
    store.learn(before, after, SOURCES)
    return bool(written(before, after) - set(SOURCES))


def edit(root: Path, name: str, text: str) -> None:
    """Write a source file so that make sees it as newer than anything."""
    newest = max(signature.mtime_ns for signature in scan_files(root).values())
    (root / name).write_text(text)
    os.utime(root / name, ns=(newest + 1, newest + 1))


def output(root: Path) -> str:
    return subprocess.run(["./prog"], cwd=root, capture_output=True, text=True, check=True).stdout


def state(root: Path, paths: set[str]) -> dict[str, tuple[bytes, int, int]]:
    found = scan_files(root)
    return {
        path: ((root / path).read_bytes(), found[path].mode, found[path].mtime_ns)
        for path in paths & found.keys()
    }


def test_two_builds_are_run_in_turn(root: Path, store: BuildStore) -> None:
    assert build(store)
    assert store.artefacts == {"prog", "latest", "build/main.o", "build/libone.so"}
    (root / "prog").chmod(0o750)
    first = store.keep("incumbent")
    first_state = state(root, store.artefacts)
    edit(root, "one.c", "int two(void) { return 2; }\nint one(void) { return two(); }\n")
    assert build(store)
    second = store.keep("candidate")
    second_state = state(root, store.artefacts)
    for _turn in range(2):
        touched = store.place(first)
        assert output(root) == "1\n"
        assert state(root, store.artefacts) == first_state
        assert "build/main.o" not in touched
        assert store.place(first) == ()
        store.place(second)
        assert output(root) == "2\n"
        assert state(root, store.artefacts) == second_state
    copies = [path for path in (root / ".tachyon/sessions/s/builds").iterdir() if path.is_file()]
    assert len(copies) == len(
        {content for each in (first_state, second_state) for content, *_rest in each.values()}
    )


def test_make_takes_a_placed_build_for_what_it_is(root: Path, store: BuildStore) -> None:
    build(store)
    first = store.keep("incumbent")
    edit(root, "one.c", "int one(void) { return 2; }\n")
    build(store)
    store.place(first)
    assert build(store)
    assert output(root) == "2\n"
    assert not build(store)


def test_files_that_the_other_build_lacks_are_removed(root: Path, store: BuildStore) -> None:
    build(store)
    first = store.keep("a")
    edit(root, "Makefile", MAKEFILE.replace("prog:", "prog: build/extra.o\nbuild/extra.o:; touch $@\nx:"))
    edit(root, "Makefile", MAKEFILE.replace("\tln -sf", "\techo 1 > build/extra.txt\n\tln -sf"))
    edit(root, "one.c", "int one(void) { return 3; }\n")
    build(store)
    second = store.keep("b")
    assert "build/extra.txt" in store.place(first)
    assert not (root / "build/extra.txt").exists()
    store.place(second)
    assert (root / "build/extra.txt").read_text() == "1\n"


def test_a_build_that_did_nothing_writes_nothing(root: Path, store: BuildStore) -> None:
    assert build(store)
    assert not build(store)


def test_sources_are_no_artefacts_unless_the_caller_says_so(root: Path, store: BuildStore) -> None:
    before = store.scan()
    (root / "one.c").write_text("changed")
    (root / "generated.h").write_text("x")
    learned = store.learn(before, store.scan(), SOURCES)
    assert learned.new == store.artefacts == {"generated.h"}
    assert learned.lost == frozenset()
    (root / "one.c").write_text("changed again")
    assert store.learn(before, store.scan()).lost == {"one.c"}


def test_an_artefact_that_was_not_kept_spoils_earlier_builds(root: Path, store: BuildStore) -> None:
    (root / "stamp").write_text("1")
    build(store)
    first = store.keep("a")
    before = store.scan()
    (root / "stamp").write_text("of another build")
    assert store.learn(before, store.scan(), SOURCES).lost == {"stamp"}
    with pytest.raises(CannotKeep, match="overwrote"):
        store.place(first)
    again = store.keep("a")
    assert store.place(again) == ()


def test_the_program_itself_can_be_named(root: Path, store: BuildStore) -> None:
    (root / "prog").write_text("#!/bin/sh\necho 1\n")
    store.learn({}, {"prog": store.scan()["prog"]})
    first = store.keep("a")
    (root / "prog").write_text("#!/bin/sh\necho 2\n")
    store.refresh()
    assert store.place(first) == ("prog",)
    assert (root / "prog").read_text() == "#!/bin/sh\necho 1\n"


def test_why_a_build_cannot_be_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotKeep, match="wrote no file"):
        BuildStore(root, root / "builds").keep("a")
    small = BuildStore(root, root / "builds", max_bytes=1000)
    (root / "big").write_bytes(b"x" * 1001)
    small.learn({}, small.scan())
    with pytest.raises(CannotKeep, match=r"more than 1000 B"):
        small.keep("a")
    full = BuildStore(root, root / "builds")
    full.learn({}, full.scan())
    monkeypatch.setattr("tachyon_tui.workspace.builds.SPARE_BYTES", 1 << 60)
    with pytest.raises(CannotKeep, match="free"):
        full.keep("a")
    assert list((root / "builds").iterdir()) == []


def test_a_file_that_somebody_else_wrote_since_is_neither_overwritten_nor_removed(
    root: Path, store: BuildStore
) -> None:
    build(store)
    first = store.keep("a")
    edit(root, "one.c", "int one(void) { return 2; }\n")
    build(store)
    (root / "build/main.o").write_text("an hour of work")
    with pytest.raises(CannotKeep, match="nothing was overwritten"):
        store.place(first)
    assert (root / "build/main.o").read_text() == "an hour of work"


def test_what_a_person_saves_during_a_later_build_is_no_artefact(root: Path, store: BuildStore) -> None:
    build(store)
    before = store.scan()
    (root / "notes.txt").write_text("mine")
    (root / "build/helper.o").write_bytes((root / "build/main.o").read_bytes())
    learned = store.learn(before, store.scan(), SOURCES, first=False)
    assert learned.new == {"build/helper.o"}
    assert "notes.txt" not in store.artefacts


def test_a_build_may_take_another_name(root: Path, store: BuildStore) -> None:
    build(store)
    first = store.keep("a")
    edit(root, "one.c", "int one(void) { return 2; }\n")
    build(store)
    renamed = store.rename(store.keep("b"), "a")
    with pytest.raises(CannotKeep):
        store.place(first)
    (root / "prog").unlink()
    store.place(renamed)
    assert (root / "prog").exists()


def test_a_damaged_copy_is_not_put_back(root: Path, store: BuildStore) -> None:
    build(store)
    first = store.keep("a")
    for copy in (root / ".tachyon/sessions/s/builds").iterdir():
        copy.chmod(0o600)
        copy.write_bytes(b"damaged")
    (root / "prog").write_text("other")
    store.refresh()
    with pytest.raises(CannotKeep, match="damaged"):
        store.place(first)
    assert (root / "prog").read_text() == "other"


def test_damage_after_a_copy_was_used_is_seen_whatever_its_size_and_time(
    root: Path, store: BuildStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tachyon_tui.workspace.builds.RACY_NS", -1)
    build(store)
    first = store.keep("a")
    (root / "prog").unlink()
    store.place(first)
    for copy in (root / ".tachyon/sessions/s/builds").iterdir():
        old = copy.stat()
        wait_for_the_file_clock(root / "probe", old.st_ctime_ns)
        copy.chmod(0o600)
        copy.write_bytes(b"x" * old.st_size)
        copy.chmod(0o400)
        os.utime(copy, ns=(old.st_atime_ns, old.st_mtime_ns))
    (root / "prog").unlink()
    with pytest.raises(CannotKeep, match="damaged"):
        store.place(first)


def wait_for_the_file_clock(probe: Path, than: int) -> None:
    """Until the clock that stamps files shows more than ``than``: it ticks every few ms."""
    while True:
        probe.write_text("x")
        if probe.stat().st_ctime_ns > than:
            return


def test_a_folder_that_became_a_link_is_not_written_through(
    root: Path, store: BuildStore, tmp_path: Path
) -> None:
    build(store)
    first = store.keep("a")
    (root / "build").rename(tmp_path / "elsewhere")
    (root / "build").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/main.o").write_text("precious")
    with pytest.raises(CannotKeep, match="link"):
        store.place(first)
    assert (tmp_path / "elsewhere/main.o").read_text() == "precious"


def test_dropping_a_build_frees_only_what_no_other_needs(root: Path, store: BuildStore) -> None:
    build(store)
    first = store.keep("a")
    edit(root, "one.c", "int one(void) { return 2; }\n")
    build(store)
    second = store.keep("b")
    folder = root / ".tachyon/sessions/s/builds"
    count = len(list(folder.iterdir()))
    store.drop(first)
    assert 0 < len(list(folder.iterdir())) < count
    (root / "prog").unlink()
    store.place(second)
    assert output(root) == "2\n"
    with pytest.raises(CannotKeep):
        store.place(first)


def test_repository_and_sessions_are_not_looked_at(root: Path) -> None:
    (root / "sub/.tachyon").mkdir(parents=True)
    (root / "sub/.tachyon/x").touch()
    (root / "sub/y").touch()
    assert scan_files(root).keys() == {*SOURCES, "sub/y"}
    before = scan_files(root)
    os.utime(root / "sub/y", ns=(1, 1))
    (root / "sub/link").symlink_to("y")
    os.mkfifo(root / "pipe")
    assert written(before, scan_files(root)) == {"sub/y", "sub/link"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    builds=st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b/c", "b/d", "e"]),
            st.tuples(st.binary(max_size=4), st.sampled_from([0o644, 0o755])),
            min_size=1,
        ),
        min_size=2,
        max_size=4,
    ),
    order=st.lists(st.integers(0, 3), max_size=8),
)
def test_any_build_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, builds: list[dict[str, tuple[bytes, int]]], order: list[int]
) -> None:
    root = tmp_path_factory.mktemp("p")
    store = BuildStore(root, root / ".tachyon/b")
    kept = []
    stamp = 10**18
    for number, files in enumerate(builds):
        before = store.scan()
        for path in store.artefacts:
            (root / path).unlink(missing_ok=True)
        for path, (content, mode) in files.items():
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_bytes(content)
            (root / path).chmod(mode)
            stamp += 1  # two of these builds fit into one tick of the clock that stamps files
            os.utime(root / path, ns=(stamp, stamp))
        store.learn(before, store.scan())
        kept.append((store.keep(str(number)), state(root, store.artefacts)))
    for turn in order:
        build_, expected = kept[turn % len(kept)]
        store.place(build_)
        assert state(root, store.artefacts) == expected


def tamper(root: Path, exempt: tuple[str, ...] = ()) -> Tamper:
    guard = Tamper(root, SOURCES, exempt)
    guard.start()
    return guard


def test_writing_replacing_or_removing_a_guarded_file_is_seen(root: Path) -> None:
    changes: dict[str, Callable[[Path], object]] = {
        "main.c": lambda path: path.write_text("changed"),
        "one.c": Path.unlink,
        "Makefile": lambda path: path.chmod(0o755),
    }
    for name, change in changes.items():
        guard = tamper(root)
        assert guard.changed() == ()
        change(root / name)
        assert guard.changed() == (name,)
        guard.start()
        assert guard.changed() == ()


def test_a_change_with_the_old_size_and_time_is_seen_and_a_touch_is_not(root: Path) -> None:
    guard = tamper(root)
    info = (root / "one.c").stat()
    (root / "one.c").write_text((root / "one.c").read_text().replace("1", "2"))
    os.utime(root / "one.c", ns=(info.st_atime_ns, info.st_mtime_ns))
    (root / "main.c").touch()
    assert guard.changed() == ("one.c",)


def test_a_link_in_place_of_a_file_is_seen(root: Path) -> None:
    guard = tamper(root)
    (root / "one.c").rename(root / "real.c")
    (root / "one.c").symlink_to("real.c")
    assert guard.changed() == ("one.c",)


def test_large_files_are_told_by_their_times(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tachyon_tui.workspace.tamper.HASHED_BYTES", 3)
    guard = tamper(root)
    assert guard.changed() == ()
    (root / "one.c").write_text("int one(void) { return 2; }\n")
    assert guard.changed() == ("one.c",)


def test_files_that_the_baseline_writes_are_exempt(root: Path) -> None:
    guard = tamper(root, ("main.c",))
    (root / "main.c").write_text("by the build")
    assert guard.changed() == ()
    (root / "one.c").write_text("by the run")
    guard.exempt(["one.c"])
    assert guard.changed() == ()
