"""The engine's side of the agent's turn: budgets, prose, retries, and the brief."""

from __future__ import annotations

from collections.abc import Sequence

from tachyon_tui.agents.base import Brief, ToolReply, ToolSpec
from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.units import gain_percent, ms_text, percent_text
from tachyon_tui.engine.control import Stopped
from tachyon_tui.engine.iteration import Iteration
from tachyon_tui.engine.ledger import Ledger
from tachyon_tui.engine.site import Site
from tachyon_tui.engine.toolbox import Toolbox, kernel_summary

NOTEBOOK_ROUNDS = 40


class RoundObserver:
    """The `agents.base.Observer` of one round."""

    def __init__(self, site: Site, number: int) -> None:
        self._site = site
        self._number = number

    def check(self) -> None:
        """Take in commands; raises to end the round. Prose that waits is shown even while the model is silent."""
        self._site.log.tick()
        self._site.control.check()

    def text(self, chunk: str) -> None:
        """Prose of the agent: it has read the hints it was given."""
        self._site.control.hints_answered()
        self._site.log.stream(self._number, chunk)

    def usage(self, prompt_tokens: int, completion_tokens: int, usd: float | None) -> None:
        """Book one request; raises `Stopped` when the budget is spent."""
        budget = self._site.budget
        budget.tokens += prompt_tokens + completion_tokens
        if usd is None:
            budget.usd = None
        elif budget.usd is not None:
            budget.usd += usd
        self._site.log.write(
            e.Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                usd=usd,
                total_tokens=budget.tokens,
                total_usd=budget.usd,
            )
        )
        if budget.spent():
            raise Stopped(_("the budget is spent: {tokens} tokens").format(tokens=budget.tokens))

    def retrying(self, attempt: int, wait_seconds: float, why: str) -> None:
        """The provider did not answer; the agent tries again."""
        self._site.log.write(e.Retrying(attempt=attempt, wait_seconds=wait_seconds, why=why[:500]))


class TimedTools:
    """A toolbox whose work is booked to the engine, not to the model."""

    def __init__(self, toolbox: Toolbox, ledger: Ledger) -> None:
        self._toolbox = toolbox
        self._ledger = ledger

    def specs(self) -> Sequence[ToolSpec]:
        return self._toolbox.specs()

    def call(self, call_id: str, name: str, arguments: str) -> ToolReply:
        with self._ledger.spend("engine"):
            return self._toolbox.call(call_id, name, arguments)

    def refuse(self, call_id: str, name: str, arguments: str, why: str) -> ToolReply:
        return self._toolbox.refuse(call_id, name, arguments, why)

    def take_hints(self) -> Sequence[str]:
        return self._toolbox.take_hints()

    @property
    def calls_left(self) -> int:
        return self._toolbox.calls_left


def brief(iteration: Iteration) -> Brief:
    """What the agent is told at the start of the round."""
    site = iteration.site
    settings = site.settings
    return Brief(
        round=iteration.number,
        max_rounds=settings.max_iterations,
        goal=_goal(site),
        kernels=kernel_summary(iteration),
        editable=tuple(sorted(site.tree.editable.files)),
        notebook=tuple(note.text() for note in site.notebook[-NOTEBOOK_ROUNDS:]),
        hints=tuple(site.control.take_hints()),
        max_tool_calls=settings.llm.max_tool_calls,
        max_builds=settings.llm.max_builds,
        min_gain_percent=settings.judge.min_gain * 100,
    )


def _goal(site: Site) -> str:
    target = site.settings.target_kernel or _("all kernels")
    lines = [
        _("Program: {program}").format(program=" ".join(site.bench.run_argv)),
        _("Target: {target} ({names})").format(
            target=target, names=", ".join(site.kernel_names[:8]) or _("wall time of the program")
        ),
        _("Target time of the original: {base}; of the best version so far: {best} ({gain} saved)").format(
            base=ms_text(site.base_ms),
            best=ms_text(site.incumbent.ms),
            gain=percent_text(gain_percent(site.base_ms, site.incumbent.ms)),
        ),
        _("Noise of one run: {noise}; gains below {visible} may be missed").format(
            noise=percent_text(site.judge.noise * 100, digits=2),
            visible=percent_text(site.judge.visible * 100),
        ),
    ]
    if site.bench.oracle is not None:
        lines.append(_("Output of every run: {oracle}").format(oracle=site.bench.oracle.describe()))
    return "\n".join(lines)
