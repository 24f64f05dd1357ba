"""Events: what the engine appends to the journal. Plain data; every reader's state is a fold over them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from tachyon_tui.core.model import Data
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.states import IterationState

SCHEMA = 1
"""Version of the journal's format; readers refuse a newer one."""


class _Event(Data):
    seq: int = 0
    """Position in the journal, from 1; 0 before it is appended."""
    time: float = 0.0
    """Seconds since the epoch; 0 before it is appended."""


class SessionStarted(_Event):
    """First event of every journal."""

    type: Literal["session_started"] = "session_started"
    schema_version: int = SCHEMA
    session: str
    program: str
    target_kernel: str = ""
    max_rounds: int
    timeout: float
    instrument: str = ""
    agent: str = ""
    machine: str = ""
    head: str = ""
    resumed: bool = False
    review: bool = False


class PreflightCheck(_Event):
    """One check before any request to a model; ``warning`` lets the session go on."""

    type: Literal["preflight_check"] = "preflight_check"
    name: str
    status: Literal["ok", "warning", "failed"]
    message: str
    fix: str = ""


class KernelTime(Data):
    """Time of one group of equal launches in a run."""

    name: str
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    count: int
    ms: float
    """Sum over the launches."""
    target: bool = True


class Calibrated(_Event):
    """Warm runs of the incumbent were timed; noise and the smallest gain that is surely seen follow."""

    type: Literal["calibrated"] = "calibrated"
    who: Literal["baseline", "best"]
    ms: float
    """Median target time."""
    samples_ms: tuple[float, ...]
    noise_percent: float
    visible_percent: float
    """Gains below it may be missed (more than 1 in 20)."""
    instrument: str
    kernels: tuple[KernelTime, ...] = ()
    oracle: str = ""
    """What the learned oracle checks, in words."""
    exit_code_alone: bool = False
    message: str = ""


class Diagnosed(_Event):
    """A diagnosis by ncu."""

    type: Literal["diagnosed"] = "diagnosed"
    who: Literal["baseline", "best", "candidate"]
    round: int | None = None
    status: str
    message: str = ""
    fix: str = ""
    report: str = ""
    """Path of the report, relative to the session directory."""
    seconds: float = 0.0
    passes: int = 0
    kernels: tuple[KernelProfile, ...] = ()


class RoundStarted(_Event):
    type: Literal["round_started"] = "round_started"
    round: int


class StateChanged(_Event):
    type: Literal["state_changed"] = "state_changed"
    round: int
    before: IterationState
    after: IterationState
    reason: str = ""


class AgentText(_Event):
    """A piece of the agent's prose; at most ten a second."""

    type: Literal["agent_text"] = "agent_text"
    round: int
    text: str


class ToolCalled(_Event):
    type: Literal["tool_called"] = "tool_called"
    round: int
    call: str
    tool: str
    arguments: str
    """As the model wrote them, cut to 4000 characters."""


class ToolFinished(_Event):
    type: Literal["tool_finished"] = "tool_finished"
    round: int
    call: str
    tool: str
    ok: bool
    text: str
    """What the agent was told, cut to 8000 characters."""
    seconds: float = 0.0


class Edited(_Event):
    """The candidate's difference to the incumbent after an edit."""

    type: Literal["edited"] = "edited"
    round: int
    path: str
    added: int
    removed: int
    diff: str
    """Unified diff of the whole candidate against the incumbent."""
    touches_host: str = ""


class BuildFinished(_Event):
    type: Literal["build_finished"] = "build_finished"
    round: int | None
    attempt: int
    ok: bool
    exit_code: int
    seconds: float
    message: str = ""
    log: str = ""
    tail: str = ""


class RunFinished(_Event):
    """One run of the program: a sample when ``ok``."""

    type: Literal["run_finished"] = "run_finished"
    round: int | None
    who: Literal["baseline", "best", "candidate"]
    cold: bool = False
    """The first run after a build: it may veto, it is never a sample."""
    ok: bool
    exit_code: int
    seconds: float
    ms: float | None = None
    """Target time."""
    sum_ms: float | None = None
    """Sum over the target's launches; larger than ``ms`` where they overlap."""
    message: str = ""
    marks: tuple[str, ...] = ()
    """Circumstances that make the sample doubtful: throttled, foreign GPU process."""
    log: str = ""


class Progress(_Event):
    """How far long work is; only for showing."""

    type: Literal["progress"] = "progress"
    round: int | None = None
    what: Literal["build", "run", "ncu", "check"]
    text: str = ""
    fraction: float | None = None


class Verdict(_Event):
    """The judge's word on the candidate."""

    type: Literal["verdict"] = "verdict"
    round: int
    accepted: bool
    kind: str
    """``clear gain``, ``gain``, ``clearly slower``, ``no gain``, ``cannot be seen``, ``not confirmed``,
    ``no effect`` or ``rejected``."""
    reason: str
    """One sentence."""
    gain_percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    runs: int = 0
    seconds: float = 0.0
    """From the passed build to this verdict."""
    run_seconds: float = 0.0
    """Of these, spent in the program itself."""
    candidate_ms: float | None = None
    incumbent_ms: float | None = None


class ReviewRequested(_Event):
    """A candidate waits for a person."""

    type: Literal["review_requested"] = "review_requested"
    round: int
    candidate: str
    why: str


class RoundFinished(_Event):
    type: Literal["round_finished"] = "round_finished"
    round: int
    state: IterationState
    reason: str
    summary: str = ""
    """The agent's own words; never a record."""
    ms: float | None = None
    change_percent: float | None = None
    """Against the best before this round; negative is faster."""
    base_ms: float | None = None
    total_percent: float | None = None
    """Saved against the original, percent."""
    commit: str = ""
    patch: str = ""
    seconds: float = 0.0
    builds: int = 0
    calls: int = 0
    runs: int = 0
    measured: bool = False


class Reverted(_Event):
    """An accepted round was taken back; ``rounds`` names it and the later ones that went with it."""

    type: Literal["reverted"] = "reverted"
    rounds: tuple[int, ...]
    commit: str = ""
    best_ms: float | None = None


class HintChanged(_Event):
    type: Literal["hint_changed"] = "hint_changed"
    hint: str
    """Id of the command that brought it."""
    text: str
    status: Literal["queued", "delivered", "answered"]
    round: int | None = None


class ControlChanged(_Event):
    type: Literal["control_changed"] = "control_changed"
    running: Literal["running", "pausing", "paused", "stopping"]
    review: bool
    why: str = ""


class CommandAnswered(_Event):
    """What became of a command."""

    type: Literal["command_answered"] = "command_answered"
    command: str
    kind: str
    ok: bool
    message: str = ""


class Usage(_Event):
    """One request was answered by the model; totals of the session so far."""

    type: Literal["usage"] = "usage"
    prompt_tokens: int
    completion_tokens: int
    usd: float | None = None
    total_tokens: int = 0
    total_usd: float | None = None


class Retrying(_Event):
    type: Literal["retrying"] = "retrying"
    attempt: int
    wait_seconds: float
    why: str


class GpuSampled(_Event):
    type: Literal["gpu_sampled"] = "gpu_sampled"
    name: str
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()
    foreign_processes: int = 0


class Notice(_Event):
    type: Literal["notice"] = "notice"
    level: Literal["debug", "info", "warning", "error"]
    message: str
    fix: str = ""


class Remeasured(_Event):
    """The final comparison of best and original, run in turn: the figure that is reported."""

    type: Literal["remeasured"] = "remeasured"
    base_ms: float
    best_ms: float
    gain_percent: float
    low_percent: float
    high_percent: float
    pairs: int
    confirmed: bool


class SessionFinished(_Event):
    type: Literal["session_finished"] = "session_finished"
    reason: str
    exit_code: int
    best_round: int | None = None
    base_ms: float | None = None
    best_ms: float | None = None
    gain_percent: float | None = None
    confirmed: bool | None = None
    """None when there was no final re-measurement."""
    succeeded: int = 0
    failed: int = 0
    seconds: float = 0.0
    engine_seconds: float = 0.0
    """Of these, neither build, run, ncu, model nor waiting for a person."""
    cpu_seconds: float = 0.0
    fix: str = ""


Event = Annotated[
    SessionStarted
    | PreflightCheck
    | Calibrated
    | Diagnosed
    | RoundStarted
    | StateChanged
    | AgentText
    | ToolCalled
    | ToolFinished
    | Edited
    | BuildFinished
    | RunFinished
    | Progress
    | Verdict
    | ReviewRequested
    | RoundFinished
    | Reverted
    | HintChanged
    | ControlChanged
    | CommandAnswered
    | Usage
    | Retrying
    | GpuSampled
    | Notice
    | Remeasured
    | SessionFinished,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[Any] = TypeAdapter(Event)
EVENT_TYPES = frozenset(EVENT.json_schema()["discriminator"]["mapping"])
"""Names of all event types; an unknown one in a journal of the same schema is skipped."""
