"""An agent proposes edits through tools; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class ToolSpec:
    """A tool as offered to the agent."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""


@dataclass(frozen=True)
class ToolReply:
    """The answer to one tool call."""

    text: str
    ok: bool = True
    round_over: bool = False
    """True when the round has ended and no further call makes sense."""


class Tools(Protocol):
    """The engine's side of the conversation."""

    def specs(self) -> Sequence[ToolSpec]: ...

    def call(self, call_id: str, name: str, arguments: str) -> ToolReply:
        """Run one call; ``arguments`` is the JSON text as the model wrote it. Bad calls are answered, not raised."""
        ...

    def refuse(self, call_id: str, name: str, arguments: str, why: str) -> ToolReply:
        """Answer a call that must not be run (cut by the output limit); it is recorded like any other."""
        ...

    def take_hints(self) -> Sequence[str]:
        """The user's hints not yet delivered, in order; taking them marks them delivered."""
        ...

    @property
    def calls_left(self) -> int: ...


class Observer(Protocol):
    """Who is told what the agent does."""

    def check(self) -> None:
        """Called at least ten times a second while the agent waits; raises to end the round."""
        ...

    def text(self, chunk: str) -> None:
        """A piece of the agent's prose as it streams in."""
        ...

    def usage(self, prompt_tokens: int, completion_tokens: int, usd: float | None) -> None:
        """One request was paid for; ``usd`` is None when the price is unknown. Raises when a budget is spent."""
        ...

    def retrying(self, attempt: int, wait_seconds: float, why: str) -> None: ...


@dataclass(frozen=True)
class Brief:
    """All that the agent is told at the start of a round, as text prepared by the engine."""

    round: int
    max_rounds: int
    goal: str
    """Program, target kernels, original and best time, gain so far."""
    kernels: str
    """Metrics, floor, advice, and source with hot lines of the incumbent."""
    editable: tuple[str, ...]
    notebook: tuple[str, ...]
    """One entry per earlier round: what was tried, verdict, numbers, why."""
    hints: tuple[str, ...]
    max_tool_calls: int
    max_builds: int
    min_gain_percent: float


class AgentError(Exception):
    """The model cannot be reached or refuses us; ends the session and costs no round.

    ``fix`` is what the user can do about it.
    """

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class Agent(Protocol):
    """Plays one round."""

    def check(self) -> None:
        """Raise `AgentError` when the agent cannot work (no key, unknown model); costs no request."""
        ...

    def play(self, brief: Brief, tools: Tools, observer: Observer) -> str:
        """Play one round; return the agent's own summary of what it tried (untrusted text, never a record).

        Raises `AgentError`; what ``observer`` raises passes through.
        """
        ...
