"""What the documents name exists, and no module is left out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tachyon_tui.cli import tachyon
from tachyon_tui.core.settings import read_file

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tachyon_tui"
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/measurements.md")
OURS = frozenset(path.name for folder in (ROOT, PACKAGE) for path in folder.iterdir())
"""First parts of paths that belong to us; others, as `src/kernels/`, are the user's."""
SESSION = frozenset({"reports", "patches", "logs", "builds", "scratch"})
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(\.?[\w-][\w.-]*(?:/[\w.-]+)*)/?(?::(\w+))?")
_FILE = re.compile(r"[\w-]+\.(?:py|c|md|toml|txt)|Makefile|LICENSE")


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def named_paths(name: str) -> list[tuple[str, str]]:
    """Every path of ours that stands between backticks, with the symbol after its colon."""
    found = []
    for code in _CODE.findall(_FENCE.sub("", read(name))):
        match = _PATH.fullmatch(code)
        if match is None or match[1] in SESSION or match[1].startswith(".tachyon"):
            continue
        if _FILE.fullmatch(match[1]) or ("/" in code and match[1].split("/")[0] in OURS):
            found.append((match[1], match[2] or ""))
    return found


def located(path: str) -> Path:
    """Where a named path lies: below the root, else below the package."""
    return ROOT / path if (ROOT / path).exists() else PACKAGE / path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_exists(name: str) -> None:
    missing = [path for path, _symbol in named_paths(name) if not located(path).exists()]
    assert missing == []


def test_every_symbol_exists_in_its_file() -> None:
    named = [(path, symbol) for path, symbol in named_paths("docs/architecture.md") if symbol]
    assert len(named) > 20
    for path, symbol in named:
        defined = rf"^\s*(?:def|class) {symbol}\b|^{symbol}\b.* = "
        assert re.search(defined, located(path).read_text("utf-8"), re.MULTILINE), f"{path}:{symbol}"


def test_every_module_is_in_the_architecture() -> None:
    modules = {
        path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".c"} and path.name != "__init__.py"
    }
    named = {located(path) for path, _symbol in named_paths("docs/architecture.md")}
    assert sorted(str(path.relative_to(ROOT)) for path in modules - named) == []


def test_the_architecture_stays_short() -> None:
    assert len(read("docs/architecture.md").splitlines()) <= 250


def test_commands_and_options_of_the_readme_exist() -> None:
    text = read("README.md")
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines() if line.startswith("    ")]
    calls = [shlex.split(line, comments=True) for line in lines if line.startswith("tachyon ")]
    assert len(calls) > 10
    known: set[str] = set()
    for command in tachyon.commands.values():
        for option in (p for p in command.params if isinstance(p, click.Option)):
            known.update(option.opts)
    for _program, command_name, *words in calls:
        command = tachyon.commands[command_name]
        ours = {name for p in command.params if isinstance(p, click.Option) for name in p.opts}
        before = words[: words.index("--")] if "--" in words else words
        assert {word for word in before if word.startswith("-")} <= ours, command_name
    assert set(re.findall(r"`(--[a-z-]+)", text)) <= known | {"--help"}


def test_the_settings_of_the_readme_can_be_read(tmp_path: Path) -> None:
    block = re.search(r"^```toml\n(.*?)^```", read("README.md"), re.MULTILINE | re.DOTALL)
    assert block is not None
    file = tmp_path / "evolve.toml"
    file.write_text(block[1], "utf-8")
    assert read_file(file)["allowed_edit_paths"] == ["src/kernels/"]


def test_the_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE))
    named = {
        target
        for name in DOCUMENTS
        for target in re.findall(r"(?:`|^ {4})make ([a-z]+)", read(name), re.MULTILINE)
    }
    assert {"demo", "test", "check"} <= named & targets
    assert named <= targets
