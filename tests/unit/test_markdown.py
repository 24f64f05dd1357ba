"""The Markdown export, read by a Markdown parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support import (
    calibrated,
    finished,
    guide_rounds,
    guide_session,
    measured,
    remeasured,
    round_finished,
    session,
    started,
)

from tachyon_tui.core import events as e
from tachyon_tui.core.session import SessionError, SessionPaths
from tachyon_tui.core.states import IterationState as S
from tachyon_tui.frontends.markdown import export, fence, inline, write_export

HOSTILE = (
    "| <img src=x onerror=a()> [a](http://x) `b` ```\n# Heading\n- item **bold** \\| $x$ ~~~ & &lt; ![i](j)"
)


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def kinds(text: str) -> set[str]:
    """Types of all tokens, inline ones too."""
    tokens = parse(text)
    return {token.type for token in tokens} | {c.type for token in tokens for c in token.children or ()}


def headings(text: str) -> list[str]:
    tokens = parse(text)
    return [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]


def fences(text: str) -> list[Token]:
    return [token for token in parse(text) if token.type == "fence"]


def edited(number: int, diff: str) -> e.Edited:
    return e.Edited(round=number, path="a.cu", added=1, removed=1, diff=diff)


def exported(tmp_path: Path, events: list[Any], settings: str = '{"max_iterations": 10}') -> str:
    return export(session(tmp_path, events, settings))


def test_the_whole_document(tmp_path: Path) -> None:
    rounds = guide_rounds()
    rounds[2:2] = [edited(0, "-no\n+never")]
    rounds[4:4] = [edited(1, "-old\n+new")]
    hint = e.HintChanged(hint="h", text="use warps", status="answered", round=1)
    usage = e.Usage(prompt_tokens=1, completion_tokens=1, total_tokens=123456, total_usd=0.31)
    events = [started(), calibrated(), hint, *rounds, usage, remeasured(), finished()]
    text = exported(tmp_path, events)
    assert headings(text) == [
        "Tachyon evolve: ./app",
        "Rounds",
        "Final re-measurement",
        "Accepted changes",
        "Round 1",
        "Round 5",
        "Round 6",
        "Commits",
        "Hints",
        "Machine and instruments",
        "Settings",
    ]
    assert "────────── Optimisation finished (+98.0%) ──────────" in text
    assert "Model: 123 456 tokens, $0.3100" in text
    assert "| #5 | ✓ SUCCESS | 2.28ms | -5.9% | +97.9% | gain |" in text
    assert "| #2 | ✗ FAILED | n/a | n/a | n/a |" in text
    assert "| 110.47ms | 2.18ms | +98.03% | +98.01% … +98.05% | 5 |" in text
    assert "- `" + "b" * 40 + "` Round 5" in text
    assert "- use warps (answered)" in text
    assert "one GPU" in text
    assert [block.info for block in fences(text)] == ["", "diff", "json"]
    assert fences(text)[1].content == "-old\n+new\n"
    assert fences(text)[2].content == '{"max_iterations": 10}\n'


@given(st.text(st.characters(codec="utf-8")) | st.just(HOSTILE))
def test_a_cell_stays_a_cell(text: str) -> None:
    table = f"| a | b |\n|---|---|\n| x{inline(text)} | y |\n"
    assert kinds(table) - {"inline", "text", "text_special"} == {
        f"{part}_{end}" for part in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")
    }
    assert sum(token.type == "td_open" for token in parse(table)) == 2


@given(st.text(st.sampled_from("`~ \n\ta-+")))
def test_a_fence_ends_where_it_should(text: str) -> None:
    tokens = parse("\n".join([*fence(text, "diff"), "", "after"]))
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].info == "diff"


def test_hostile_text_everywhere(tmp_path: Path) -> None:
    diff = "+" + HOSTILE.replace("\n", "\n+") + "\n+`````\n+\x1b]0;t\x07"
    events = [
        started(program=HOSTILE, machine=HOSTILE, agent=HOSTILE, head=HOSTILE, target_kernel=HOSTILE),
        calibrated(oracle=HOSTILE),
        e.HintChanged(hint="h", text=HOSTILE, status="queued"),
        e.RoundStarted(round=0),
        edited(0, diff),
        measured(0, S.SUCCESS, 2.0, -1.0, 1.0, reason=HOSTILE, summary=HOSTILE, commit=HOSTILE),
        e.RoundStarted(round=1),
        round_finished(1, S.FAILED, reason=HOSTILE, summary=HOSTILE),
        finished(reason=HOSTILE, confirmed=None),
    ]
    text = exported(tmp_path, events, settings="```\n# no\n" + HOSTILE)
    assert kinds(text).isdisjoint({"link_open", "image", "html_block", "strong_open", "s_open"})
    assert "<img" not in "".join(token.content for token in parse(text) if token.type != "fence").replace(
        "\\<", ""
    )
    assert headings(text)[1:4] == ["Rounds", "Final re-measurement", "Accepted changes"]
    assert "Heading" not in headings(text)
    rows = [token for token in parse(text) if token.type == "td_open"]
    assert len(rows) % 2 == 0
    assert "\x1b" not in text


def test_the_patch_file_is_preferred(tmp_path: Path) -> None:
    events = [
        e.RoundStarted(round=0),
        edited(0, "from the journal"),
        measured(0, S.SUCCESS, 2.0, -1.0, 1.0, patch="patches/0.patch"),
    ]
    paths = session(tmp_path, events)
    paths.patches.mkdir()
    (paths.patches / "0.patch").write_text("from the file", "utf-8")
    assert next(block.content for block in fences(export(paths))) == "from the file\n"
    (paths.patches / "0.patch").unlink()
    assert next(block.content for block in fences(export(paths))) == "from the journal\n"


def test_a_patch_outside_of_the_session_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("tell nobody", "utf-8")
    events = [
        e.RoundStarted(round=0),
        measured(0, S.SUCCESS, 2.0, -1.0, 1.0, patch="../../../secret"),
    ]
    text = exported(tmp_path, events)
    assert "tell nobody" not in text
    assert "The patch is no longer there." in text


def test_taken_back_rounds_are_marked_and_have_no_diff(tmp_path: Path) -> None:
    events = [
        e.RoundStarted(round=0),
        edited(0, "+gone"),
        measured(0, S.SUCCESS, 2.0, -1.0, 1.0, commit="a" * 40),
        e.Reverted(rounds=(0,)),
    ]
    text = exported(tmp_path, events)
    assert "SUCCESS (taken back)" in text
    assert "+gone" not in text
    assert "Commits" not in headings(text)


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ([remeasured(confirmed=False), finished(exit_code=3, confirmed=False)], "Not confirmed"),
        ([finished(exit_code=130, confirmed=None)], "the session was interrupted"),
        ([], "The session has not ended."),
    ],
)
def test_how_it_ended(tmp_path: Path, tail: list[Any], said: str) -> None:
    text = exported(tmp_path, [started(), *guide_rounds(), *tail])
    assert said in text.replace("\\", "")


def test_an_empty_session(tmp_path: Path) -> None:
    paths = session(tmp_path, [])
    paths.settings.unlink()
    assert "There was no round." in export(paths)


def test_a_damaged_journal(tmp_path: Path) -> None:
    paths = session(tmp_path, [])
    paths.journal.write_bytes(b"rubbish\n")
    with pytest.raises(SessionError):
        export(paths)


class TestWrite:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> SessionPaths:
        return session(tmp_path, guide_session())

    def test_whole(self, tmp_path: Path, paths: SessionPaths) -> None:
        file = tmp_path / "result.md"
        file.write_text("old", "utf-8")
        write_export(paths, file)
        assert file.read_text("utf-8") == export(paths)
        assert [f.name for f in tmp_path.iterdir() if f.is_file()] == ["result.md"]

    def test_or_not_at_all(self, tmp_path: Path, paths: SessionPaths) -> None:
        with pytest.raises(OSError, match="result"):
            write_export(paths, tmp_path / "nowhere" / "result.md")
        (tmp_path / "folder").mkdir()
        with pytest.raises(OSError, match="folder"):
            write_export(paths, tmp_path / "folder")
        assert [f.name for f in tmp_path.iterdir() if f.is_file()] == []
