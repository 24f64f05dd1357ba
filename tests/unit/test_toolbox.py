"""The gates of the seven tools: a table, tool by tool and state by state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tachyon_tui.core.settings import Settings
from tachyon_tui.core.states import IterationState as S
from tachyon_tui.engine.iteration import Iteration
from tachyon_tui.engine.toolbox import TOOLS, Toolbox

ALLOWED = {
    "get_kernel_summary": set(S),
    "edit_source_file": {S.HYPOTHESIS, S.EDITING},
    "compile_kernel": {S.EDITING},
    "run_benchmark": {S.RUNNING, S.PROFILING},
    "reprofile": {S.PROFILING},
    "compare_metrics": {S.PROFILING},
    "get_evolve_status": set(S),
}
ARGUMENTS = {"edit_source_file": '{"path": "a.cu", "old_text": "a", "new_text": "b"}'}


class Work:
    """Stands where the round's work would be done, and notes what was asked for."""

    number, builds, cold, ruling, profiles = 0, 0, None, None, ()

    def __init__(self, state: S) -> None:
        self.state = state
        self.done: list[str] = []
        self.written: list[Any] = []
        self.site = SimpleNamespace(
            settings=Settings(),
            control=SimpleNamespace(
                boundary=lambda: None, hints_answered=lambda: None, left=1.0, pending_hints=0
            ),
            log=SimpleNamespace(write=self.written.append),
        )

    def edit(self, *_args: str) -> str:
        self.done.append("edit_source_file")
        return "edited"

    def compile(self) -> tuple[bool, str]:
        self.done.append("compile_kernel")
        return True, "built"

    def benchmark(self) -> str:
        self.done.append("run_benchmark")
        return "ran"


def toolbox(state: S) -> tuple[Toolbox, Work]:
    work = Work(state)
    return Toolbox(cast(Iteration, work), 3), work


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("name", ALLOWED)
def test_gate(name: str, state: S) -> None:
    assert (state in TOOLS[name].states) == (state in ALLOWED[name])
    if state in ALLOWED[name]:
        return
    box, work = toolbox(state)
    reply = box.call("c1", name, ARGUMENTS.get(name, "{}"))
    assert not reply.ok
    assert not reply.round_over
    assert work.done == []
    assert f"the state is {state}" in reply.text
    assert "get_evolve_status" in reply.text, "it says what may be called"


@pytest.mark.parametrize(
    ("name", "state"),
    [("edit_source_file", S.HYPOTHESIS), ("compile_kernel", S.EDITING), ("run_benchmark", S.RUNNING)],
)
def test_an_open_gate_lets_the_call_through(name: str, state: S) -> None:
    box, work = toolbox(state)
    assert box.call("c1", name, ARGUMENTS.get(name, "{}")).ok
    assert work.done == [name]


def test_there_are_exactly_the_seven_tools_and_none_takes_a_command() -> None:
    assert set(TOOLS) == set(ALLOWED)
    box, _work = toolbox(S.HYPOTHESIS)
    names = {field for spec in box.specs() for field in spec.parameters.get("properties", {})}
    assert names == {"kernel", "path", "start", "end", "old_text", "new_text"}


@pytest.mark.parametrize("arguments", ["{", "[]", "null", '{"command": "echo"}', '"x"', "{}x"])
def test_arguments_that_cannot_be_used_run_nothing(arguments: str) -> None:
    box, work = toolbox(S.EDITING)
    reply = box.call("c1", "compile_kernel", arguments)
    assert not reply.ok
    assert work.done == []


def test_a_refused_call_is_recorded_and_counted() -> None:
    box, work = toolbox(S.EDITING)
    assert not box.refuse("c1", "compile_kernel", '{"a', "cut off").ok
    assert [event.type for event in work.written] == ["tool_called", "tool_finished"]
    assert box.calls_left == Settings().llm.max_tool_calls - 1
