"""The seven tools as the agent sees them: arguments checked, gates kept, every call recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tachyon_tui.agents.base import ToolReply, ToolSpec
from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _, mark, translate
from tachyon_tui.core.states import IterationState
from tachyon_tui.core.units import ms_text, percent_text
from tachyon_tui.engine.briefing import comparison, floor_text, kernel_text, source_text
from tachyon_tui.engine.control import Interrupted
from tachyon_tui.engine.iteration import IncumbentBroken, Iteration, RoundOver
from tachyon_tui.workspace.editable import NotEditable
from tachyon_tui.workspace.edits import EditProblem
from tachyon_tui.workspace.problems import ForeignChange, Problem

S = IterationState
ARGUMENT_LIMIT = 4000
ANSWER_LIMIT = 8000
SUMMARY_LIMIT = 40_000


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NoArguments(_Arguments):
    """For the tools that take nothing."""


class SummaryArguments(_Arguments):
    """Arguments of `get_kernel_summary`."""

    kernel: str = Field(default="", description="Only kernels whose name holds this text.")
    path: str = Field(default="", description="Only this file of the editable list.")
    start: int = Field(default=0, ge=0, description="First line to show, from 1.")
    end: int = Field(default=0, ge=0, description="Last line to show.")


class EditArguments(_Arguments):
    """Arguments of `edit_source_file`."""

    path: str = Field(description="A file of the editable list, relative to the project root.")
    old_text: str = Field(
        description="Text that occurs exactly once in the file; empty to create a new file."
    )
    new_text: str = Field(description="What takes its place.")


Answer = tuple[bool, str]


@dataclass(frozen=True)
class _Tool:
    description: str
    arguments: type[_Arguments]
    states: frozenset[IterationState]
    when: str
    """When it may be called, for the answer to a call at the wrong time."""


_ALWAYS = frozenset(S)
_MEASURED = frozenset({S.RUNNING, S.PROFILING})

TOOLS: dict[str, _Tool] = {
    "get_kernel_summary": _Tool(
        "Metrics, stall reasons, floor, rule advice and source with hot lines of the target kernels in the "
        "incumbent; the list of editable files; with path (and start, end) any part of one of them as it is now.",
        SummaryArguments,
        _ALWAYS,
        mark("at any time"),
    ),
    "edit_source_file": _Tool(
        "Replace one unique piece of an editable source file. Fails when old_text is not found or not unique. "
        "Only before the build passed.",
        EditArguments,
        frozenset({S.HYPOTHESIS, S.EDITING}),
        mark("before a build has passed"),
    ),
    "compile_kernel": _Tool(
        "Run the project's build command over the edited source. After a failure edit again.",
        NoArguments,
        frozenset({S.EDITING}),
        mark("after an edit"),
    ),
    "run_benchmark": _Tool(
        "Run the program once, timed, and check its output.",
        NoArguments,
        _MEASURED,
        mark("after a passed build"),
    ),
    "reprofile": _Tool(
        "Further timed runs of candidate and incumbent until the verdict is clear, then an ncu diagnosis.",
        NoArguments,
        frozenset({S.PROFILING}),
        mark("after a passed run"),
    ),
    "compare_metrics": _Tool(
        "Baseline, best and candidate side by side, with the verdict as it stands.",
        NoArguments,
        frozenset({S.PROFILING}),
        mark("after a passed run"),
    ),
    "get_evolve_status": _Tool(
        "State of the round, what may be called next, rounds and budget left, pending hints.",
        NoArguments,
        _ALWAYS,
        mark("at any time"),
    ),
}


class Toolbox:
    """The `agents.base.Tools` of one round."""

    def __init__(self, iteration: Iteration, rounds_left: int) -> None:
        self._iteration = iteration
        self._site = iteration.site
        self._rounds_left = rounds_left
        self.calls = 0
        self.over: RoundOver | None = None
        """Set once a step has ended the round."""

    def specs(self) -> Sequence[ToolSpec]:
        """The tools with the JSON schema of their arguments."""
        return [
            ToolSpec(name, tool.description, tool.arguments.model_json_schema())
            for name, tool in TOOLS.items()
        ]

    @property
    def calls_left(self) -> int:
        """Tool calls that this round still allows; 0 once it is over."""
        return 0 if self.over else max(0, self._site.settings.llm.max_tool_calls - self.calls)

    def take_hints(self) -> Sequence[str]:
        """The person's hints that the agent has not seen."""
        return self._site.control.take_hints()

    def refuse(self, call_id: str, name: str, arguments: str, why: str) -> ToolReply:
        """Record and answer a call that must not be run."""
        self.calls += 1
        self._called(call_id, name, arguments)
        return self._finished(call_id, name, False, why, 0.0)

    def call(self, call_id: str, name: str, arguments: str) -> ToolReply:
        """Run one call. What the agent did wrong is answered; interruptions and bugs pass through."""
        self._site.control.boundary()
        self._site.control.hints_answered()
        if self.calls_left == 0:
            return ToolReply(_("No tool calls are left in this round."), False, True)
        self.calls += 1
        self._called(call_id, name, arguments)
        begun = time.monotonic()
        try:
            ok, text = self._answer(name, arguments)
        except RoundOver as over:
            self.over = over
            ok, text = False, _("The round is over: {reason}").format(reason=over.reason)
        except ForeignChange:
            self._finished(call_id, name, False, _("stopped"), time.monotonic() - begun)
            raise
        except (EditProblem, NotEditable) as refusal:
            ok, text = False, str(refusal)
        except Problem as problem:
            ok, text = False, f"{problem.message} {problem.fix}".strip()
        except (Interrupted, IncumbentBroken) as stop:
            self._finished(call_id, name, False, str(stop), time.monotonic() - begun)
            raise
        return self._finished(call_id, name, ok, text, time.monotonic() - begun)

    def _called(self, call_id: str, name: str, arguments: str) -> None:
        self._site.log.write(
            e.ToolCalled(
                round=self._iteration.number,
                call=self._call_key(call_id),
                tool=name[:80],
                arguments=arguments[:ARGUMENT_LIMIT],
            )
        )

    def _finished(self, call_id: str, name: str, ok: bool, text: str, seconds: float) -> ToolReply:
        self._site.log.write(
            e.ToolFinished(
                round=self._iteration.number,
                call=self._call_key(call_id),
                tool=name[:80],
                ok=ok,
                text=text[:ANSWER_LIMIT],
                seconds=seconds,
            )
        )
        return ToolReply(text, ok, self.over is not None)

    def _call_key(self, call_id: str) -> str:
        return f"{self._iteration.number}.{self.calls}.{call_id[:40]}"

    def _answer(self, name: str, arguments: str) -> Answer:
        if self.over is not None:
            return False, _("The round is over.")
        tool = TOOLS.get(name)
        if tool is None:
            return False, _("There is no tool {name!r}. {status}").format(name=name[:80], status=self._may())
        if self._iteration.state not in tool.states:
            return False, _("{name} can be called {when}; the state is {state}. {may}").format(
                name=name, when=translate(tool.when), state=self._iteration.state, may=self._may()
            )
        try:
            parsed = tool.arguments.model_validate_json(arguments.strip() or "{}")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return False, _("The arguments cannot be used: {where} {why}. Expected: {fields}.").format(
                where=where, why=first["msg"], fields=", ".join(tool.arguments.model_fields) or _("none")
            )
        return self._run(parsed, name)

    def _run(self, parsed: _Arguments, name: str) -> Answer:
        iteration = self._iteration
        if isinstance(parsed, SummaryArguments):
            return True, self._summary(parsed)
        if isinstance(parsed, EditArguments):
            return True, iteration.edit(parsed.path, parsed.old_text, parsed.new_text)
        if name == "compile_kernel":
            return iteration.compile()
        if name == "run_benchmark":
            return True, iteration.benchmark()
        if name == "reprofile":
            return True, self._reprofile()
        if name == "compare_metrics":
            return True, self._compare()
        return True, self._status()

    # -- answers -------------------------------------------------------------------------------------------

    def _summary(self, wanted: SummaryArguments) -> str:
        return kernel_summary(self._iteration, wanted.kernel, wanted.path, wanted.start, wanted.end)

    def _reprofile(self) -> str:
        iteration = self._iteration
        ruling = iteration.decide()
        iteration.diagnose()
        word = _("The verdict: accepted") if ruling.accepted else _("The verdict: rejected")
        lines = [f"{word}. {ruling.reason}"]
        if ruling.needs_person:
            lines.append(_("A person decides: {why}").format(why=ruling.needs_person))
        lines += [kernel_text(profile) for profile in iteration.profiles[:2]]
        lines.append(
            _("Nothing more can change in this round. End it with your summary in at most three sentences.")
        )
        return "\n\n".join(lines)

    def _compare(self) -> str:
        iteration, site = self._iteration, self._site
        cold = iteration.cold
        rows = [
            _("timed runs: original {base}, best {best}, candidate {ms}").format(
                base=ms_text(site.base_ms),
                best=ms_text(site.incumbent.ms),
                ms=ms_text(cold.ms if cold else None),
            )
        ]
        table = comparison(
            {
                _("original"): site.base_profiles,
                _("best"): site.incumbent.profiles,
                _("candidate"): iteration.profiles,
            }
        )
        if table:
            rows.append(_("under ncu:") + "\n" + table)
        ruling, standing = iteration.ruling, site.judge.standing
        if ruling is not None:
            rows.append(_("verdict: {reason}").format(reason=ruling.reason))
        elif standing is not None:
            rows.append(
                _("no verdict yet; after {runs} runs the saving is {gain} (between {low} and {high})").format(
                    runs=standing.runs,
                    gain=percent_text(standing.gain_percent),
                    low=percent_text(standing.low_percent),
                    high=percent_text(standing.high_percent),
                )
            )
        return "\n\n".join(rows)

    def _status(self) -> str:
        settings, iteration = self._site.settings, self._iteration
        lines = [
            _("round {round}, state {state}").format(round=iteration.number, state=iteration.state),
            self._may(),
            _(
                "left: {rounds} rounds after this one, {calls} tool calls, {builds} builds, {seconds:.0f} s"
            ).format(
                rounds=self._rounds_left,
                calls=self.calls_left,
                builds=settings.llm.max_builds - iteration.builds,
                seconds=max(0.0, self._site.control.left),
            ),
            _("hints waiting: {count}").format(count=self._site.control.pending_hints),
        ]
        return "\n".join(lines)

    def _may(self) -> str:
        allowed = [name for name, tool in TOOLS.items() if self._iteration.state in tool.states]
        return _("May be called now: {tools}.").format(tools=", ".join(allowed))


def kernel_summary(
    iteration: Iteration, kernel: str = "", path: str = "", start: int = 0, end: int = 0
) -> str:
    """The incumbent's diagnosis and the source as it is now, for the agent."""
    site = iteration.site
    profiles = [p for p in site.incumbent.profiles if kernel in p.name]
    editable = sorted(site.tree.editable.files | site.tree.editable.created)
    if path:
        text = site.tree.read(path)
        return source_text(path, text, profiles, start, end)
    parts = [_("Files you may edit: {files}").format(files=", ".join(editable) or _("none"))]
    if profiles:
        parts.append(_("Diagnosis of the best version (metrics of the incumbent, not of your edits):"))
    elif site.settings.profiler == "stopwatch":
        parts.append(_("There is no profile: this session times the program with a stopwatch."))
    else:
        parts.append(
            _("There is no profile: {why}").format(why=site.why_no_profile or _("ncu could not be used"))
        )
        parts.append(floor_text(None))
    parts += [kernel_text(profile) for profile in profiles]
    for name in editable:
        try:
            parts.append(source_text(name, site.tree.read(name), profiles))
        except (EditProblem, NotEditable) as problem:
            parts.append(f"=== {name}: {problem}")
    joined = "\n\n".join(parts)
    if len(joined) > SUMMARY_LIMIT:
        joined = joined[:SUMMARY_LIMIT] + "\n… " + _("cut; ask for one file with path, start and end")
    return joined
