"""The engine's pen: order, and how often it writes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import session

from tachyon_tui.core import events as e
from tachyon_tui.core.session import Journal, JournalReader, SessionPaths
from tachyon_tui.engine.log import EventLog


class FakeClock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """An event log on a real journal, under a clock that the test turns."""

    def __init__(self, folder: Path) -> None:
        self.paths: SessionPaths = session(folder)
        self.clock = FakeClock()
        self.journal = Journal(self.paths)
        self.log = EventLog(self.journal, self.clock)
        self.times: list[tuple[float, Any]] = []
        self.journal.listen(lambda event: self.times.append((self.clock.now, event)))

    def events(self) -> list[Any]:
        return list(JournalReader(self.paths).events())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.journal.close()


def test_text_is_joined_to_ten_events_a_second(desk: Desk) -> None:
    words = [f"{n} " for n in range(1000)]
    for word in words:
        desk.log.stream(3, word)
        desk.clock.now += 0.002
    desk.log.flush()
    texts = desk.events()
    assert "".join(event.text for event in texts) == "".join(words)
    assert {event.round for event in texts} == {3}
    assert 15 <= len(texts) <= 2 * 10 + 1
    moments = [now for now, _event in desk.times[:-1]]
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(moments))


def test_slow_text_is_not_held_back_longer_than_to_the_next_piece(desk: Desk) -> None:
    for piece in ("a", "b", "c"):
        desk.log.stream(0, piece)
        desk.clock.now += 5
    assert [event.text for event in desk.events()] == ["ab"]
    desk.log.flush()
    desk.log.flush()
    assert [event.text for event in desk.events()] == ["ab", "c"]


def test_what_is_written_comes_after_the_text_before_it(desk: Desk) -> None:
    desk.log.stream(1, "I will edit.")
    desk.log.write(e.RoundStarted(round=2))
    desk.log.stream(2, "Next.")
    desk.log.notice("careful", fix="look", level="warning")
    kinds = [(event.type, event.seq) for event in desk.events()]
    assert kinds == [("agent_text", 1), ("round_started", 2), ("agent_text", 3), ("notice", 4)]
    notice = desk.events()[-1]
    assert (notice.message, notice.fix, notice.level) == ("careful", "look", "warning")


def test_text_of_two_rounds_is_never_joined(desk: Desk) -> None:
    desk.log.stream(1, "one")
    desk.log.stream(2, "two")
    desk.log.flush()
    assert [(event.round, event.text) for event in desk.events()] == [(1, "one"), (2, "two")]


def test_write_returns_the_event_as_written(desk: Desk) -> None:
    written = desk.log.write(e.RoundStarted(round=0))
    assert written == desk.events()[0]
    assert (written.seq, written.time > 0) == (1, True)


def test_progress_is_written_four_times_a_second(desk: Desk) -> None:
    for n in range(100):
        desk.log.progress("ncu", f"pass {n}", n / 100, 7)
        desk.clock.now += 0.02
    shown = desk.events()
    assert 7 <= len(shown) <= 9
    assert shown[0].text == "pass 0"
    assert {(event.what, event.round) for event in shown} == {("ncu", 7)}
    fractions = [event.fraction for event in shown]
    assert fractions == sorted(fractions)


def test_progress_shows_the_end_of_a_long_line(desk: Desk) -> None:
    desk.log.progress("build", "x" * 500 + "end")
    text = desk.events()[0].text
    assert text.endswith("end")
    assert len(text) == 200


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text(alphabet="abc\n", max_size=3), st.floats(0, 0.3), st.booleans()), max_size=30)
)
def test_no_text_is_lost_and_order_is_kept(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[str, float, bool]]
) -> None:
    """Pieces with pauses between them; some are followed by an event, written into the text as ``|``."""
    desk = Desk(tmp_path_factory.mktemp("log"))
    for text, pause, event in pieces:
        desk.log.stream(0, text)
        if event:
            desk.log.write(e.RoundStarted(round=0))
        desk.clock.now += pause
    desk.log.flush()
    seen = "".join(event.text if event.type == "agent_text" else "|" for event in desk.events())
    assert seen == "".join(text + ("|" if event else "") for text, _pause, event in pieces)
    desk.journal.close()
