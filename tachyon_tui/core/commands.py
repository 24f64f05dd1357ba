"""Commands: what a person or a script appends to `commands.jsonl`."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from tachyon_tui.core.model import Data


class _Command(Data):
    id: str = Field(default_factory=lambda: secrets.token_hex(6))
    time: float = Field(default_factory=time.time)


class Steer(_Command):
    """A hint for the agent, delivered at the next tool boundary."""

    type: Literal["steer"] = "steer"
    text: str = Field(min_length=1, max_length=8000)


class Pause(_Command):
    """Hold before the next tool call or run."""

    type: Literal["pause"] = "pause"


class Continue(_Command):
    type: Literal["continue"] = "continue"


class Step(_Command):
    """Let one tool call through, then hold again."""

    type: Literal["step"] = "step"


class Skip(_Command):
    """End this round as ROLLED_BACK."""

    type: Literal["skip"] = "skip"


class Stop(_Command):
    """End the session: now, or after this round."""

    type: Literal["stop"] = "stop"
    after_round: bool = False


class Review(_Command):
    """Switch on or off that a person decides on every candidate the judge would accept."""

    type: Literal["review"] = "review"
    on: bool


class Accept(_Command):
    """Accept the waiting candidate; refused when another one waits by then."""

    type: Literal["accept"] = "accept"
    candidate: str = ""
    """Id of the candidate meant; empty means the one that waits."""


class Revert(_Command):
    """Turn down the waiting candidate, or, with ``round``, take an accepted round back."""

    type: Literal["revert"] = "revert"
    candidate: str = ""
    round: int | None = None
    confirmed: bool = False
    """Later accepted rounds go too; without confirmation they are only named."""


Command = Annotated[
    Steer | Pause | Continue | Step | Skip | Stop | Review | Accept | Revert, Field(discriminator="type")
]

COMMAND: TypeAdapter[Any] = TypeAdapter(Command)
