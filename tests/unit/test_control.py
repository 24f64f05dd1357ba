"""The door for commands and the session's clock: a real commands.jsonl, a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import session

from tachyon_tui.core import commands as c
from tachyon_tui.core.session import CommandReader, Journal, append_command
from tachyon_tui.engine.control import Control, Interrupted, Skipped, Stopped
from tachyon_tui.engine.log import EventLog

TIMEOUT = 3600.0


class FakeTime:
    """A clock that only sleeping moves; what a person does meanwhile is planned beforehand."""

    def __init__(self) -> None:
        self.now = 500.0
        self.plans: list[tuple[float, Callable[[], None]]] = []
        self._idle = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._idle = 0.0 if self.plans else self._idle + seconds
        assert self._idle < 1, "it waits and nothing is planned that could end it"
        while self.plans and self.plans[0][0] <= self.now:
            self.plans.pop(0)[1]()


class Desk:
    """A control with its session directory, and a person who types commands."""

    def __init__(self, folder: Path, timeout: float = TIMEOUT) -> None:
        self.paths = session(folder)
        self.time = FakeTime()
        self.journal = Journal(self.paths)
        self.events: list[Any] = []
        self.journal.listen(self.events.append)
        log = EventLog(self.journal, self.time.clock)
        self.control = Control(
            CommandReader(self.paths), log, timeout, clock=self.time.clock, sleep=self.time.sleep
        )

    def type(self, command: Any) -> str:
        """Append a command; its id."""
        append_command(self.paths, command)
        return str(command.id)

    def type_at(self, seconds: float, command: Any) -> None:
        """Append a command when so many seconds from now have been waited."""
        self.at(seconds, lambda: append_command(self.paths, command))

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        self.time.plans.append((self.time.now + seconds, action))
        self.time.plans.sort(key=lambda plan: plan[0])

    def send(self, command: Any) -> tuple[bool, str]:
        """Append a command, let the engine take it in, and return the answer."""
        identity = self.type(command)
        self.time.now += 1
        self.control.check()
        return self.answer(identity)

    def answer(self, identity: str) -> tuple[bool, str]:
        [found] = [x for x in self.events if x.type == "command_answered" and x.command == identity]
        return found.ok, found.message

    def answers(self) -> list[tuple[str, bool]]:
        return [(x.kind, x.ok) for x in self.events if x.type == "command_answered"]

    def states(self) -> list[str]:
        return [x.running for x in self.events if x.type == "control_changed"]

    def hints(self) -> list[tuple[str, str]]:
        return [(x.text, x.status) for x in self.events if x.type == "hint_changed"]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.journal.close()


# -- pause, continue, step ----------------------------------------------------------------------------------


def test_running_passes_every_boundary(desk: Desk) -> None:
    for _boundary in range(5):
        desk.control.boundary()
    assert desk.events == []


def test_pause_holds_at_the_next_boundary_until_continue(desk: Desk) -> None:
    assert desk.send(c.Pause())[0]
    assert desk.states() == ["pausing"]
    began = desk.time.now
    desk.type_at(30, c.Continue())
    desk.control.boundary()
    assert desk.time.now - began >= 30
    assert desk.states() == ["pausing", "paused", "running"]
    desk.control.boundary()


def test_step_lets_one_boundary_through(desk: Desk) -> None:
    desk.send(c.Pause())
    desk.type_at(10, c.Step())
    desk.control.boundary()
    began = desk.time.now
    desk.type_at(20, c.Step())
    desk.control.boundary()
    assert desk.time.now - began >= 20
    desk.type_at(5, c.Continue())
    desk.control.boundary()
    assert desk.states()[-1] == "running"


def test_two_steps_let_two_boundaries_through(desk: Desk) -> None:
    desk.send(c.Pause())
    desk.type_at(10, c.Step())
    desk.type_at(10, c.Step())
    desk.control.boundary()
    began = desk.time.now
    desk.control.boundary()
    assert desk.time.now == began
    desk.type_at(10, c.Continue())
    desk.control.boundary()
    assert desk.time.now > began


def test_step_while_running_pauses(desk: Desk) -> None:
    assert desk.send(c.Step())[0]
    desk.type_at(1, c.Continue())
    desk.control.boundary()
    assert desk.states() == ["pausing", "paused", "running"]


def test_continue_forgets_steps_that_were_not_taken(desk: Desk) -> None:
    desk.send(c.Pause())
    desk.send(c.Step())
    desk.send(c.Continue())
    desk.send(c.Pause())
    began = desk.time.now
    desk.type_at(10, c.Continue())
    desk.control.boundary()
    assert desk.time.now > began


def test_pause_twice_is_one_pause(desk: Desk) -> None:
    assert desk.send(c.Pause())[0]
    assert desk.send(c.Pause())[0]
    assert desk.states() == ["pausing"]


def test_the_engine_pauses_by_itself_and_says_why(desk: Desk) -> None:
    desk.control.pause("between rounds")
    desk.control.pause("again")
    assert [(x.running, x.why) for x in desk.events] == [("pausing", "between rounds")]
    desk.type_at(3, c.Continue())
    desk.control.boundary()


# -- stop, skip, signal, timeout ----------------------------------------------------------------------------


def test_stop_ends_the_work_at_the_next_check(desk: Desk) -> None:
    identity = desk.type(c.Stop())
    with pytest.raises(Stopped) as stopped:
        desk.control.check()
    assert desk.answer(identity)[0]
    assert stopped.value.exit_code is None
    assert desk.states() == ["stopping"]
    with pytest.raises(Stopped):
        desk.control.boundary()


@pytest.mark.parametrize("command", [c.Continue(), c.Step()])
def test_a_stop_is_not_taken_back(desk: Desk, command: Any) -> None:
    desk.type(c.Stop())
    identity = desk.type(command)
    with pytest.raises(Stopped):
        desk.control.check()
    assert not desk.answer(identity)[0]
    assert desk.states() == ["stopping"]


def test_stop_ends_a_pause(desk: Desk) -> None:
    desk.send(c.Pause())
    desk.type_at(10, c.Stop())
    with pytest.raises(Stopped):
        desk.control.boundary()


def test_stop_after_the_round_interrupts_nothing(desk: Desk) -> None:
    desk.control.begin_round(3)
    assert desk.send(c.Stop(after_round=True))[0]
    desk.control.boundary()
    desk.control.end_round()
    assert desk.control.stop_after_round
    assert desk.states() == ["running"]


def test_skip_ends_this_round_once(desk: Desk) -> None:
    desk.control.begin_round(3)
    identity = desk.type(c.Skip())
    with pytest.raises(Skipped):
        desk.control.check()
    assert "3" in desk.answer(identity)[1]
    desk.control.check()


def test_skip_without_a_round_is_refused(desk: Desk) -> None:
    assert not desk.send(c.Skip())[0]
    desk.control.begin_round(0)
    desk.control.check()


def test_a_late_skip_does_not_hit_the_next_round(desk: Desk) -> None:
    desk.control.begin_round(3)
    desk.type(c.Skip())
    with desk.control.shielded():
        desk.control.check()
    desk.control.end_round()
    desk.control.begin_round(4)
    desk.control.check()


def test_a_signal_ends_the_session_with_130(desk: Desk) -> None:
    desk.control.signal("SIGTERM")
    with pytest.raises(Stopped) as stopped:
        desk.control.check()
    assert stopped.value.exit_code == 130
    assert "SIGTERM" in stopped.value.reason


@pytest.mark.parametrize(("passed", "ends"), [(TIMEOUT - 1, False), (TIMEOUT, True)])
def test_the_total_timeout(desk: Desk, passed: float, ends: bool) -> None:
    desk.time.now += passed
    if ends:
        with pytest.raises(Stopped, match="3600 s"):
            desk.control.check()
    else:
        desk.control.check()


def test_seconds_kept_back_for_the_end_end_the_rounds_earlier(desk: Desk) -> None:
    desk.control.reserve = 100.0
    assert desk.control.left == TIMEOUT - 100
    desk.time.now += TIMEOUT - 50
    with pytest.raises(Stopped):
        desk.control.check()
    desk.control.reserve = 0.0
    desk.control.check()


def test_a_child_may_take_its_own_timeout_and_not_more_than_the_session_s(desk: Desk) -> None:
    assert desk.control.allowance(120) == 120
    desk.time.now += TIMEOUT - 30
    assert 30 <= desk.control.allowance(120) <= 32
    desk.time.now += 100
    assert 0 < desk.control.allowance(120) <= 2
    with desk.control.shielded():
        assert desk.control.allowance(120) == 120


def interrupt_by_stop(desk: Desk) -> None:
    desk.type(c.Stop())


def interrupt_by_skip(desk: Desk) -> None:
    desk.type(c.Skip())


def interrupt_by_signal(desk: Desk) -> None:
    desk.control.signal("SIGINT")


def interrupt_by_time(desk: Desk) -> None:
    desk.time.now += 2 * TIMEOUT


@pytest.mark.parametrize(
    "interrupt", [interrupt_by_stop, interrupt_by_skip, interrupt_by_signal, interrupt_by_time]
)
def test_a_shielded_block_is_finished_first(desk: Desk, interrupt: Callable[[Desk], None]) -> None:
    desk.control.begin_round(1)
    with desk.control.shielded():
        interrupt(desk)
        desk.control.check()
        desk.time.now += 1
        with desk.control.shielded():
            desk.control.check()
        desk.control.check()
        desk.control.boundary()
    with pytest.raises(Interrupted):
        desk.control.check()


def test_a_shielded_block_does_not_hold_for_a_pause(desk: Desk) -> None:
    desk.send(c.Pause())
    with desk.control.shielded():
        desk.control.boundary()
    assert desk.states() == ["pausing"]


def test_the_shield_ends_with_an_error_too(desk: Desk) -> None:
    def fails() -> None:
        with desk.control.shielded():
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    desk.control.signal("SIGINT")
    with pytest.raises(Stopped):
        desk.control.check()


def test_the_clock_stands_still_while_it_waits_for_a_person(tmp_path: Path) -> None:
    """A person may take longer than the whole timeout."""
    desk = Desk(tmp_path, timeout=100)
    desk.time.now += 50
    desk.send(c.Pause())
    before = desk.control.elapsed
    desk.type_at(300, c.Continue())
    desk.control.boundary()
    assert desk.control.elapsed == pytest.approx(before, abs=0.1)
    assert desk.control.waited == pytest.approx(300, abs=0.5)
    desk.type_at(400, c.Accept())
    assert desk.control.wait_for_review("r1")
    assert desk.control.elapsed == pytest.approx(before, abs=0.2)
    assert desk.control.waited == pytest.approx(700, abs=0.5)
    desk.time.now += 10
    assert desk.control.left == pytest.approx(100 - before - 10, abs=0.2)
    desk.journal.close()


def test_waiting_that_is_interrupted_counts_as_waiting(desk: Desk) -> None:
    desk.send(c.Pause())
    desk.at(900, lambda: desk.control.signal("SIGTERM"))
    with pytest.raises(Stopped):
        desk.control.boundary()
    assert desk.control.waited == pytest.approx(900, abs=0.5)


# -- review: accept and revert ------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False])
def test_review_is_switched(desk: Desk, on: bool) -> None:
    desk.control.review = not on
    assert desk.send(c.Review(on=on))[0]
    assert desk.control.review is on
    assert [(x.running, x.review) for x in desk.events if x.type == "control_changed"] == [("running", on)]


@pytest.mark.parametrize("candidate", ["r4", ""])
@pytest.mark.parametrize(("kind", "accepted"), [(c.Accept, True), (c.Revert, False)])
def test_a_person_decides(desk: Desk, kind: Any, accepted: bool, candidate: str) -> None:
    desk.control.begin_round(4)
    desk.type_at(60, kind(candidate=candidate))
    assert desk.control.wait_for_review("r4") is accepted
    assert desk.answers() == [(kind().type, True)]


def test_a_late_accept_does_not_hit_the_next_candidate(desk: Desk) -> None:
    desk.type_at(1, c.Accept(candidate="r4"))
    desk.type_at(2, c.Revert(candidate="r4"))
    desk.type_at(3, c.Revert(candidate="r5"))
    assert desk.control.wait_for_review("r5") is False
    assert desk.answers() == [("accept", False), ("revert", False), ("revert", True)]


@pytest.mark.parametrize("command", [c.Accept(), c.Accept(candidate="r4"), c.Revert()])
def test_a_decision_when_nothing_waits_is_refused_and_not_kept(desk: Desk, command: Any) -> None:
    assert not desk.send(command)[0]
    desk.type_at(1, c.Revert(candidate="r4"))
    assert desk.control.wait_for_review("r4") is False


def test_the_first_of_two_decisions_holds(desk: Desk) -> None:
    desk.type_at(1, c.Revert())
    desk.type_at(1, c.Accept())
    assert desk.control.wait_for_review("r4") is False
    assert desk.answers() == [("revert", True), ("accept", False)]


def test_each_candidate_is_decided_anew(desk: Desk) -> None:
    desk.type_at(1, c.Accept())
    assert desk.control.wait_for_review("r4") is True
    desk.type_at(1, c.Revert())
    assert desk.control.wait_for_review("r5") is False


def test_skip_ends_a_review_and_no_later_accept_is_promised(desk: Desk) -> None:
    desk.control.begin_round(4)
    desk.type_at(5, c.Skip())
    with pytest.raises(Skipped):
        desk.control.wait_for_review("r4")
    assert not desk.send(c.Accept(candidate="r4"))[0]


@pytest.mark.parametrize(
    ("command", "ok", "names"),
    [
        (c.Revert(round=5), True, "5"),
        (c.Revert(round=3), False, "#4, #5"),
        (c.Revert(round=3, confirmed=True), True, "3"),
        (c.Revert(round=2), False, "2"),
    ],
)
def test_an_accepted_round_is_taken_back(desk: Desk, command: c.Revert, ok: bool, names: str) -> None:
    """With later accepted rounds only when that was confirmed."""
    desk.control.accepted_from(lambda number: tuple(range(number, 6)) if number >= 3 else None)
    answered, message = desk.send(command)
    assert answered is ok
    assert names in message
    if ok:
        assert desk.control.revert is not None
        assert (desk.control.revert.round, desk.control.revert.command) == (command.round, command.id)
    else:
        assert desk.control.revert is None


def test_taking_back_a_round_does_not_decide_on_the_waiting_candidate(desk: Desk) -> None:
    desk.control.accepted_from(lambda number: (number,))
    desk.type_at(1, c.Revert(round=2))
    desk.type_at(9, c.Accept())
    assert desk.control.wait_for_review("r4") is True
    assert desk.control.revert is not None


@pytest.mark.parametrize("order", [(3, 5), (5, 3)])
def test_of_two_rounds_taken_back_the_earlier_one_takes_the_later_with_it(
    desk: Desk, order: tuple[int, int]
) -> None:
    desk.control.accepted_from(lambda number: tuple(range(number, 6)))
    for number in order:
        assert desk.send(c.Revert(round=number, confirmed=True))[0]
    assert desk.control.revert is not None
    assert desk.control.revert.round == 3


# -- hints --------------------------------------------------------------------------------------------------


def test_a_hint_is_queued_delivered_and_answered(desk: Desk) -> None:
    desk.control.begin_round(2)
    identity = desk.type(c.Steer(text="use shared memory"))
    desk.control.check()
    assert (desk.control.pending_hints, desk.hints()) == (1, [("use shared memory", "queued")])
    assert desk.control.take_hints() == ["use shared memory"]
    assert (desk.control.pending_hints, desk.control.take_hints()) == (0, [])
    desk.control.hints_answered()
    desk.control.hints_answered()
    assert [status for _text, status in desk.hints()] == ["queued", "delivered", "answered"]
    found = [x for x in desk.events if x.type == "hint_changed"]
    assert {(x.hint, x.round) for x in found} == {(identity, 2)}


def test_a_hint_that_was_not_delivered_is_not_answered(desk: Desk) -> None:
    desk.send(c.Steer(text="one"))
    desk.control.hints_answered()
    assert desk.control.take_hints() == ["one"]


def test_taking_hints_takes_in_commands(desk: Desk) -> None:
    desk.type(c.Steer(text="one"))
    desk.type(c.Steer(text="two"))
    assert desk.control.take_hints() == ["one", "two"]


def test_hints_outlive_rounds(desk: Desk) -> None:
    """What no round delivered, and what was delivered to an agent that never spoke again, goes to the next round."""
    desk.control.begin_round(1)
    desk.send(c.Steer(text="heard"))
    desk.control.take_hints()
    desk.control.hints_answered()
    desk.send(c.Steer(text="unheard"))
    desk.control.take_hints()
    desk.send(c.Steer(text="waiting"))
    desk.control.end_round()
    assert desk.control.pending_hints == 2
    desk.control.begin_round(2)
    assert desk.control.take_hints() == ["unheard", "waiting"]
    desk.control.hints_answered()
    desk.control.end_round()
    assert desk.control.take_hints() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["steer", "take", "answer", "begin", "end"]), max_size=25))
def test_no_hint_is_ever_lost(tmp_path_factory: pytest.TempPathFactory, acts: list[str]) -> None:
    """Every hint is delivered, in order, again and again until it is answered, and then never again."""
    desk = Desk(tmp_path_factory.mktemp("control"))
    waiting: list[str] = []
    delivered: list[str] = []
    for number, act in enumerate(acts):
        desk.time.now += 1
        match act:
            case "steer":
                waiting.append(f"hint {number}")
                desk.type(c.Steer(text=waiting[-1]))
            case "take":
                assert desk.control.take_hints() == waiting
                delivered, waiting = delivered + waiting, []
            case "answer":
                desk.control.hints_answered()
                delivered = []
            case "begin":
                desk.control.begin_round(number)
            case "end":
                desk.control.end_round()
                waiting, delivered = delivered + waiting, []
    desk.time.now += 1
    assert desk.control.take_hints() == waiting
    desk.journal.close()


# -- answers ------------------------------------------------------------------------------------------------


def test_every_command_is_answered_exactly_once(desk: Desk) -> None:
    desk.control.begin_round(1)
    sent: list[Any] = [
        c.Steer(text="x"),
        c.Pause(),
        c.Step(),
        c.Continue(),
        c.Review(on=True),
        c.Accept(),
        c.Revert(),
        c.Revert(round=7),
        c.Stop(after_round=True),
        c.Skip(),
        c.Stop(),
        c.Pause(),
    ]
    for command in sent:
        desk.type(command)
    with pytest.raises(Stopped):
        desk.control.check()
    for _again in range(3):
        desk.time.now += 1
        with pytest.raises(Interrupted):
            desk.control.check()
    answered = [x for x in desk.events if x.type == "command_answered"]
    assert [(x.command, x.kind) for x in answered] == [(s.id, s.type) for s in sent]
    assert all(x.message for x in answered)


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"{}",
        b'{"type": "fly"}',
        b'{"type": "steer", "text": ""}',
        b'{"type": "review"}',
        b"\xff\xfe",
        b"[1]",
    ],
)
def test_a_bad_line_is_told_and_does_not_stop_the_rest(desk: Desk, line: bytes) -> None:
    with desk.paths.commands.open("ab") as file:
        file.write(line + b"\n")
    assert desk.send(c.Pause())[0]
    notices = [x for x in desk.events if x.type == "notice"]
    assert len(notices) == 1
    assert line.decode("utf-8", "replace") in notices[0].message


def test_a_line_without_its_end_waits_for_it(desk: Desk) -> None:
    command = c.Pause()
    line = command.model_dump_json().encode()
    with desk.paths.commands.open("ab", buffering=0) as file:
        file.write(line[:20])
        desk.control.check()
        assert desk.events == []
        file.write(line[20:] + b"\n")
    desk.time.now += 1
    desk.control.check()
    assert desk.answer(command.id)[0]


def test_where_the_agent_is_about_to_act_commands_are_taken_in_at_once(desk: Desk) -> None:
    """However shortly before the last look was."""
    desk.control.check()
    desk.type(c.Steer(text="now"))
    assert desk.control.take_hints() == ["now"]
    desk.type(c.Stop())
    with pytest.raises(Stopped):
        desk.control.boundary()


def test_commands_are_read_at_most_twenty_times_a_second(desk: Desk) -> None:
    """`check` is called for every piece of a stream; only every 50 ms does it look at the disk."""
    beats: list[float] = []
    desk.control.heartbeat = lambda: beats.append(desk.time.now)
    for _call in range(1000):
        desk.control.check()
        desk.time.now += 0.001
    assert 15 <= len(beats) <= 21
