"""Updates the message catalogues from the sources and compiles them: ``python tools/messages.py``.

Prints how many messages have no translation yet, and ends with 1 when there are any.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tachyon_tui"
LANGUAGES = ("zh",)
NO_DATE = datetime(2000, 1, 1, tzinfo=timezone.utc)
"""Instead of the day of compilation, so that the same messages give the same file."""
KEYWORDS = ("_", "mark")


def calls(file: Path) -> Iterator[ast.Call]:
    """Calls of ``_`` and ``mark`` in a source file, also those inside f-strings (which Babel's own reader misses)."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KEYWORDS:
            yield node


def extract() -> Catalog:
    """All messages of the package, with the files they stand in."""
    catalogue = Catalog()
    for file in sorted(PACKAGE.rglob("*.py")):
        for call in calls(file):
            if len(call.args) == 1 and isinstance(call.args[0], ast.Constant):
                message = str(call.args[0].value)
                catalogue.add(message, locations=[(str(file.relative_to(ROOT)), 0)])
    return catalogue


def catalogue_file(language: str) -> Path:
    """The .po file of a language; its .mo stands beside it."""
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "tachyon.po"


def load(language: str) -> Catalog:
    """The catalogue of a language, empty when there is none yet."""
    file = catalogue_file(language)
    catalogue = Catalog(locale=language)
    if file.is_file():
        with file.open("rb") as stream:
            catalogue = read_po(stream, locale=language, charset="utf-8")
    catalogue.fuzzy = False
    catalogue.header_comment = "# Messages of tachyon; tools/messages.py keeps them in step with the sources."
    return catalogue


def header(catalogue: Catalog) -> list[tuple[str, str]]:
    """The header without dates and names, so that files change only with their messages."""
    kept = ("Language", "Plural-Forms", "MIME-Version", "Content-Type", "Content-Transfer-Encoding")
    return [(name, value) for name, value in Catalog(locale=catalogue.locale).mime_headers if name in kept]


def text(catalogue: Catalog) -> bytes:
    """The .po file of a catalogue, the same whenever it is written."""
    out = io.BytesIO()
    write_po(
        out,
        catalogue,
        width=110,
        omit_header=True,
        sort_output=True,
        include_lineno=False,
        ignore_obsolete=True,
    )
    lines = [*catalogue.header_comment.split("\n"), 'msgid ""', 'msgstr ""']
    lines += [f'"{name}: {value}\\n"' for name, value in header(catalogue)]
    return "\n".join([*lines, "", ""]).encode() + out.getvalue()


def compiled(catalogue: Catalog) -> bytes:
    """The .mo file of a catalogue."""
    plain = Catalog(
        locale=catalogue.locale,
        project="tachyon",
        version="0",
        msgid_bugs_address="-",
        last_translator="-",
        language_team="-",
        creation_date=NO_DATE,
        revision_date=NO_DATE,
    )
    for message in catalogue:
        if message.id and message.string:
            plain.add(message.id, message.string, context=message.context)
    out = io.BytesIO()
    write_mo(out, plain)
    return out.getvalue()


def update(language: str) -> list[str]:
    """Bring the files of a language up to date; returns the messages without a translation."""
    catalogue = load(language)
    catalogue.update(extract(), no_fuzzy_matching=True, update_creation_date=False)
    file = catalogue_file(language)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text(catalogue))
    file.with_suffix(".mo").write_bytes(compiled(catalogue))
    return [str(message.id) for message in catalogue if message.id and not message.string]


def main() -> int:
    """Update all languages."""
    missing = {language: update(language) for language in LANGUAGES}
    for language, messages in missing.items():
        sys.stdout.write(f"{language}: {len(messages)} messages without a translation\n")
        for message in messages:
            sys.stdout.write(f"  {message!r}\n")
    return 1 if any(missing.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
