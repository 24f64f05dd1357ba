"""Outside text is plain when it reaches the terminal."""

from __future__ import annotations

import io
import os
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support import Closed

from tachyon_tui.frontends.text import LineWriter, ascii_symbols, clean, columns, one_line, wrap

ANY_TEXT = st.text(st.characters())
"""With surrogates and every control character."""


@pytest.mark.parametrize(
    ("outside", "shown"),
    [
        ("smem[tid] = [bold]x[/bold];", "smem[tid] = [bold]x[/bold];"),
        ("\x1b[31mred\x1b[0m \x1b[1;38;5;3mon\x1b[K", "red on"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07after", "]0;titleafter"),
        ("\x1b]52;c;aGk=\x1b\\x", "]52;c;aGk=\\x"),
        ("/*\x1b]0; */ evil(); /*\x07*/", "/*]0; */ evil(); /**/"),
        ("a\tb\n\tc", "a   b\n    c"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("a\x00\x07\x08\x7f\x85b", "ab"),
        ("user\u202egnp.exe \u2066x\u2069", "usergnp.exe x"),
        ("a\u200bb\u200dc\ufeffd\u00ade\u2028f", "abcdef"),
        ("\U000e0041\ufe0f\u3164x", "x"),
        ("bad\udc80byte", "bad\ufffdbyte"),
        ("归约 kernel é ✓", "归约 kernel é ✓"),
        ("", ""),
    ],
)
def test_clean(outside: str, shown: str) -> None:
    assert clean(outside) == shown


@given(ANY_TEXT)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert {unicodedata.category(c) for c in clean(text) if c != "\n"}.isdisjoint(bad)
    assert clean(clean(text)) == clean(text)


def test_every_control_and_format_character_goes() -> None:
    hidden = "".join(
        c
        for c in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp"} and c not in "\t\n\r"
    )
    assert clean(hidden.replace("\x1b", "").replace("\x9b", "")) == ""


def test_lines_are_cut_each_by_itself() -> None:
    assert clean("abcdefgh\nxy\n" + "z" * 9, 5) == "abcd…\nxy\nzzzz…"
    assert len(clean("x" * 10_000)) == 2000


@given(ANY_TEXT, st.integers(1, 60))
def test_one_line_fits(text: str, cells: int) -> None:
    line = one_line(text, cells)
    assert "\n" not in line
    assert cell_len(line) <= cells


@given(st.text(st.sampled_from("ab 归约，x")), st.integers(8, 40))
def test_wrapped_lines_fit_and_lose_no_word(text: str, width: int) -> None:
    flat = " ".join(text.split())
    lines = wrap(flat, width, "  ")
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == flat.replace(" ", "")


def test_wrap_breaks_at_spaces() -> None:
    assert wrap("aaa bbb ccc", 8, "  ") == ["aaa bbb", "  ccc"]
    assert wrap("一二三四五", 6) == ["一二三", "四五"]
    assert wrap("", 10) == []


def test_columns_count_cells() -> None:
    assert columns([("轮", "x"), ("ab", "y"), ("a", "")]) == ["轮  x", "ab  y", "a"]


def test_ascii_keeps_words_of_other_scripts() -> None:
    assert ascii_symbols("✓ ✗ ↩ ── 归约…") == "+ x < -- 归约..."


class TestLineWriter:
    def test_falls_back_to_ascii_where_the_stream_cannot_show_symbols(self) -> None:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, "latin-1", write_through=True)
        LineWriter(stream).line("✓ é 归")
        assert raw.getvalue().decode("latin-1") == "+ é ?\n"

    def test_a_reader_that_went_away_is_no_error(self, tmp_path: Path) -> None:
        descriptor = os.open(tmp_path / "pipe", os.O_CREAT | os.O_WRONLY)
        stream = Closed(descriptor)
        writer = LineWriter(stream)
        writer.line("one")
        writer.line("two")
        assert stream.tries == 1
        os.write(descriptor, b"what was buffered")
        os.close(descriptor)
        assert (tmp_path / "pipe").read_bytes() == b""

    def test_no_stream_at_all(self) -> None:
        LineWriter(None).line("x")
