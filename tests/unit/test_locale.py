"""The catalogues hold every message of the sources, with the same placeholders, and are compiled."""

from __future__ import annotations

import ast
import gettext
import importlib.util
import re
import string
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tachyon_tui.core.i18n import LOCALE_DIR, _, current_language, language_from_locale, set_language
from tachyon_tui.engine.toolbox import TOOLS
from tachyon_tui.profilers.metrics import CATALOGUE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tachyon_tui"


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("messages", ROOT / "tools" / "messages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


messages: Any = _tool()
FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.fixture(autouse=True)
def _english_again() -> Iterator[None]:
    yield
    set_language("en")


@pytest.fixture(scope="module")
def sources() -> set[str]:
    return {message.id for message in messages.extract() if message.id}


@pytest.fixture(scope="module")
def chinese() -> dict[str, str]:
    return {message.id: message.string for message in messages.load("zh") if message.id}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_messages_are_literals(file: Path) -> None:
    """A text from a table is marked there with ``mark("...")`` and later goes through ``translate``."""
    bad = [
        call.lineno
        for call in messages.calls(file)
        if len(call.args) != 1
        or not isinstance(call.args[0], ast.Constant)
        or not isinstance(call.args[0].value, str)
    ]
    assert bad == []


def test_messages_inside_of_f_strings_are_found(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("a = f\"{_('one')} [{mark('two')}]\"\nb = other('three')\n_(name)\n", "utf-8")
    assert [call.lineno for call in messages.calls(file)] == [3, 1, 1]


def test_none_is_missing_in_chinese(sources: set[str], chinese: dict[str, str]) -> None:
    missing = sorted(message for message in sources if not chinese.get(message))
    assert missing == [], "run tools/messages.py and translate"


def test_none_is_left_over(sources: set[str], chinese: dict[str, str]) -> None:
    assert sorted(set(chinese) - sources) == [], "run tools/messages.py"


def placeholders(text: str) -> list[tuple[str, str | None, str | None]]:
    return sorted(
        (name, spec, conversion)
        for _text, name, spec, conversion in string.Formatter().parse(text)
        if name is not None
    )


def test_placeholders_are_the_same(chinese: dict[str, str]) -> None:
    differ = [
        m
        for m, translation in chinese.items()
        if translation and placeholders(m) != placeholders(translation)
    ]
    assert differ == []


VERBATIM = re.compile(r"`[^`]*`|(?<![\w-])--[a-z][a-z-]*")
"""What a person types: code in backticks and options."""


def test_code_and_options_are_the_same(chinese: dict[str, str]) -> None:
    differ = [
        m
        for m, translation in chinese.items()
        if translation and set(VERBATIM.findall(m)) != set(VERBATIM.findall(translation))
    ]
    assert differ == []


def test_texts_of_tables_are_marked(sources: set[str]) -> None:
    texts = {text for entry in CATALOGUE for text in (entry.label, entry.missing) if text}
    texts |= {tool.when for tool in TOOLS.values()}
    assert texts - sources == set()


def test_the_compiled_catalogue_is_that_of_the_source(chinese: dict[str, str]) -> None:
    with messages.catalogue_file("zh").with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    assert {m: compiled.gettext(m) for m, translation in chinese.items() if translation} == {
        m: translation for m, translation in chinese.items() if translation
    }
    known = vars(compiled)["_catalog"]
    assert set(known) - {""} == {m for m, translation in chinese.items() if translation}


def test_the_files_are_as_the_tool_writes_them() -> None:
    catalogue = messages.load("zh")
    assert messages.catalogue_file("zh").read_bytes() == messages.text(catalogue)


def test_where_the_catalogues_are() -> None:
    assert messages.catalogue_file("zh").parents[2] == LOCALE_DIR


def test_language_of_the_process() -> None:
    assert _("Optimisation finished") == "Optimisation finished"
    set_language("zh")
    assert current_language() == "zh"
    assert _("Optimisation finished") == "优化完成"
    assert _("no such message") == "no such message"
    set_language("en")
    assert _("Optimisation finished") == "Optimisation finished"


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({"LC_ALL": "zh_CN.UTF-8", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LC_ALL": "C", "LANG": "zh_CN"}, "en"),
        ({"LC_MESSAGES": "de_DE.UTF-8"}, "en"),
        ({"LC_ALL": "", "LANG": "zh_CN"}, "zh"),
    ],
)
def test_language_from_the_locale(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], language: str
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language_from_locale() == language
