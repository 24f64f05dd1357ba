"""Interface language: stdlib gettext catalogues of `tachyon_tui/locale`, one language a process."""

from __future__ import annotations

import gettext
import locale as system_locale
import os
from pathlib import Path
from typing import Literal

Language = Literal["en", "zh"]
LOCALE_DIR = Path(__file__).resolve().parent.parent / "locale"


class _Catalogue:
    translations: gettext.NullTranslations = gettext.NullTranslations()
    language: Language = "en"


def set_language(language: Language) -> None:
    """Choose the language of all later calls of `_` in this process."""
    _Catalogue.language = language
    _Catalogue.translations = gettext.translation(
        "tachyon", LOCALE_DIR, languages=[language], fallback=language == "en"
    )


def current_language() -> Language:
    """The language last set, English at first."""
    return _Catalogue.language


def language_from_locale() -> Language:
    """``zh`` when the environment's locale is Chinese, else ``en``."""
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"):
        value = os.environ.get(variable, "")
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    name = system_locale.getlocale()[0] or ""
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


def _(text: str) -> str:
    """The text in the chosen language; the text itself where the catalogue has none."""
    return _Catalogue.translations.gettext(text)


def mark(text: str) -> str:
    """The text as it is, marked for the catalogue: `translate` it later, when the language is known."""
    return text


def translate(text: str) -> str:
    """A text that was marked with `mark`, in the chosen language; `_` is for literals."""
    return _Catalogue.translations.gettext(text)
