"""Lines of text: results (rounds and the final summary) on stdout, everything else on stderr.

The round lines and the two last lines are a format that scripts read, so they are never translated; only the
heading of the summary is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO

from tachyon_tui.core import events as e
from tachyon_tui.core.i18n import _
from tachyon_tui.core.profile import KernelProfile
from tachyon_tui.core.session import SessionError
from tachyon_tui.core.states import IterationState
from tachyon_tui.core.units import (
    cost_text,
    count_text,
    duration_text,
    ms_text,
    percent_text,
)
from tachyon_tui.core.view import SessionView
from tachyon_tui.frontends.text import LineWriter, clean, one_line, wrap

SYMBOLS = {IterationState.SUCCESS: "✓", IterationState.FAILED: "✗", IterationState.ROLLED_BACK: "↩"}
SUMMARY_CELLS = 320
"""Terminal cells of the agent's own summary that are shown."""
HOT_LINES = 3
CHECK_SYMBOLS = {"ok": "✓", "warning": "!", "failed": "✗"}


def round_line(event: e.RoundFinished, view: SessionView) -> str:
    """The line of one finished round; its form is fixed, scripts read it."""
    head = f"#{event.round} {SYMBOLS.get(event.state, '·')} {event.state}"
    accepted = event.state is IterationState.SUCCESS
    if event.ms is None or event.change_percent is None or not (accepted or event.measured):
        return f"{head}  {one_line(event.reason, 400)}"
    word = "Accepted" if accepted else "Rejected"
    earlier = any(r.accepted and r.number != event.round for r in view.rounds)
    watched = view.calibration is not None and view.calibration.instrument == "stopwatch"
    what = "time" if watched else "GPU time"
    total = f" (total: {percent_text(event.total_percent)})" if accepted and earlier else ""
    return (
        f"{head}  {word}: {what} {percent_text(event.change_percent, sign=True)}{total} - {ms_text(event.ms)} "
        f"(base: {ms_text(event.base_ms)}, {percent_text(event.total_percent, sign=True)})"
    )


def summary_lines(event: e.SessionFinished) -> tuple[str, str]:
    """The two lines that end every session that got as far as a baseline."""
    gain = 0.0 if event.gain_percent is None else event.gain_percent
    best = event.best_ms if event.best_ms is not None else event.base_ms
    number = "none" if event.best_round is None else f"iter {event.best_round}"
    title = _("Optimisation finished")
    return (
        f"────────── {title} ({percent_text(gain, sign=True)}) ──────────",
        f"  Best: {number}  |  GPU: {ms_text(event.base_ms)} -> {ms_text(best)}  |  "
        f"Success: {event.succeeded}, Failed: {event.failed}",
    )


def got_going(event: e.SessionFinished, view: SessionView) -> bool:
    """False when the session ended before there was anything to sum up (preflight, refused key)."""
    if event.exit_code == 2:
        return False
    return bool(view.rounds) or (event.base_ms is not None and event.exit_code != 1)


def failure_lines(event: e.SessionFinished, view: SessionView) -> list[str]:
    """Why a session ended with an error and what to do; empty when it did not, or when a check has said it."""
    if event.exit_code in (0, 3, 130):
        return []
    failed = [check for check in view.checks if check.status == "failed"]
    if failed and event.exit_code == 2:
        return []
    return with_fix(_("Ended with an error: {why}").format(why=clean(event.reason, 2000)), event.fix)


def check_lines(event: e.PreflightCheck) -> list[str]:
    """One check of the preflight with its fix."""
    line = f"{CHECK_SYMBOLS[event.status]} {one_line(event.name, 40)}  {clean(event.message, 2000)}"
    return with_fix(line, event.fix if event.status != "ok" else "")


def with_fix(line: str, fix: str) -> list[str]:
    """A message and, indented below it, what to do."""
    return [line, "  " + _("Fix: {fix}").format(fix=clean(fix, 2000))] if fix else [line]


def unconfirmed(view: SessionView) -> str:
    """What to say of a gain that the final re-measurement does not show; names the commits that stay."""
    commits = ", ".join(clean(r.commit[:12]) for r in view.accepted if r.commit) or _("none")
    return _("Not confirmed: the interval contains 0. The commits stay: {commits}.").format(commits=commits)


def kernel_summary(kernel: KernelProfile) -> list[str]:
    """Hot lines and floor of one diagnosed kernel in at most three lines."""
    figures = []
    for key, label in (
        ("compute_percent", _("compute")),
        ("dram_percent", _("DRAM")),
        ("occupancy_percent", _("occupancy")),
    ):
        metric = kernel.metrics.get(key)
        if metric is not None and isinstance(metric.value, float):
            figures.append(f"{label} {percent_text(metric.value)}")
    name = one_line(kernel.function or kernel.name, 60)
    lines = [_("{kernel}: {figures}").format(kernel=name, figures=", ".join(figures) or _("no figures"))]
    if kernel.hot_lines:
        hot = ", ".join(
            f"{one_line(line.file.rsplit('/', 1)[-1], 40)}:{line.line} {percent_text(line.percent)}"
            for line in kernel.hot_lines[:HOT_LINES]
        )
        lines.append("  " + _("hot lines: {lines}").format(lines=hot))
    if kernel.floor is not None:
        lines.append(
            "  "
            + _("floor: {ms} ({binding} bound)").format(
                ms=ms_text(kernel.floor.ms), binding=kernel.floor.binding
            )
        )
    return lines


class PlainReporter:
    """A session as lines of text; ``width`` is that of the terminal in cells."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        verbose: bool = False,
        ascii: bool = False,  # noqa: A002
        width: int = 100,
    ) -> None:
        self._out = LineWriter(out, ascii=ascii)
        self._err = LineWriter(err, ascii=ascii)
        self._verbose = verbose
        self._width = width
        self._paused = False
        self._handlers: dict[str, Callable[[Any, SessionView], None]] = {
            "session_started": self._started,
            "preflight_check": self._check,
            "calibrated": self._calibrated,
            "diagnosed": self._diagnosed,
            "round_finished": self._round_finished,
            "verdict": self._verdict,
            "review_requested": self._review,
            "reverted": self._reverted,
            "hint_changed": self._hint,
            "control_changed": self._control,
            "command_answered": self._answered,
            "retrying": self._retrying,
            "notice": self._notice,
            "remeasured": self._remeasured,
            "session_finished": self._finished,
        }
        if verbose:
            self._handlers |= {
                "round_started": self._round_started,
                "state_changed": self._state,
                "tool_called": self._tool_called,
                "tool_finished": self._tool_finished,
                "build_finished": self._build,
                "run_finished": self._run,
            }

    def event(self, event: Any, view: SessionView) -> None:
        """Print what this event says, if anything."""
        handler = self._handlers.get(event.type)
        if handler is not None:
            handler(event, view)

    def failed(self, error: SessionError) -> None:
        """The journal cannot be read."""
        self._say(*with_fix(clean(error.message), error.fix))

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._err.line(line)

    def _block(self, text: str, lines: int = 12) -> None:
        """Outside text on several indented lines, the middle left out."""
        parts = clean(text, self._width).rstrip("\n").split("\n")
        if len(parts) > lines:
            left_out = _("({count} lines left out)").format(count=len(parts) - lines)
            parts = [*parts[: lines - 4], left_out, *parts[-4:]]
        self._say(*(f"    {part}".rstrip() for part in parts if part))

    def _started(self, event: e.SessionStarted, _view: SessionView) -> None:
        again = _("Session {session} resumed") if event.resumed else _("Session {session}")
        self._say(again.format(session=one_line(event.session, 80)))
        facts = [event.program, event.machine, event.agent]
        self._say("  " + "  |  ".join(one_line(fact, 80) for fact in facts if fact))

    def _check(self, event: e.PreflightCheck, _view: SessionView) -> None:
        self._say(*check_lines(event))

    def _calibrated(self, event: e.Calibrated, _view: SessionView) -> None:
        if event.who == "baseline":
            line = _(
                "Baseline {ms}: noise {noise}, gains below {visible} may be missed ({instrument}, {count} runs)"
            )
        elif self._verbose:
            line = _(
                "Best {ms}: noise {noise}, gains below {visible} may be missed ({instrument}, {count} runs)"
            )
        else:
            return
        self._say(
            line.format(
                ms=ms_text(event.ms),
                noise=percent_text(event.noise_percent, digits=2),
                visible=percent_text(event.visible_percent),
                instrument=event.instrument,
                count=len(event.samples_ms),
            )
        )
        if event.message:
            self._say("  " + clean(event.message))
        if event.exit_code_alone:
            self._say("  " + _("Checked in every run: the exit code alone."))
        elif event.oracle:
            self._say("  " + _("Checked in every run: {oracle}").format(oracle=one_line(event.oracle, 400)))

    def _diagnosed(self, event: e.Diagnosed, _view: SessionView) -> None:
        if event.message and event.status != "ok":
            self._say(*with_fix(clean(event.message), event.fix))
        if event.who == "baseline" or self._verbose:
            for kernel in event.kernels:
                self._say(*kernel_summary(kernel))

    def _round_started(self, event: e.RoundStarted, view: SessionView) -> None:
        most = view.started.max_rounds if view.started else "?"
        self._say(_("Round {round} (at most {most} rounds)").format(round=event.round, most=most))

    def _state(self, event: e.StateChanged, _view: SessionView) -> None:
        reason = f"  {one_line(event.reason, 200)}" if event.reason else ""
        self._say(f"  #{event.round} {event.before} -> {event.after}{reason}")

    def _tool_called(self, event: e.ToolCalled, _view: SessionView) -> None:
        self._say(f"  #{event.round} {one_line(event.tool, 40)} {one_line(event.arguments, 300)}")

    def _tool_finished(self, event: e.ToolFinished, _view: SessionView) -> None:
        mark = "✓" if event.ok else "✗"
        self._say(f"  #{event.round} {mark} {one_line(event.tool, 40)} {duration_text(event.seconds)}")
        self._block(event.text)

    def _build(self, event: e.BuildFinished, _view: SessionView) -> None:
        if event.ok:
            self._say("  ✓ " + _("build passed in {time}").format(time=duration_text(event.seconds)))
        else:
            line = _("build failed with exit code {code} after {time}").format(
                code=event.exit_code, time=duration_text(event.seconds)
            )
            self._say(f"  ✗ {line}")
            self._block(event.message or event.tail)

    def _run(self, event: e.RunFinished, _view: SessionView) -> None:
        who = {"baseline": _("baseline"), "best": _("best"), "candidate": _("candidate")}[event.who]
        if event.ok:
            parts = [_("run of {who}: {ms}").format(who=who, ms=ms_text(event.ms))]
            parts += [_("cold")] if event.cold else []
            parts += [one_line(mark, 60) for mark in event.marks]
            self._say("  ✓ " + ", ".join(parts))
        else:
            line = _("run of {who} failed with exit code {code}").format(who=who, code=event.exit_code)
            self._say(f"  ✗ {line}")
            self._block(event.message)

    def _verdict(self, event: e.Verdict, _view: SessionView) -> None:
        if self._verbose:
            runs = _("{count} runs").format(count=event.runs)
            self._say(f"  #{event.round} {one_line(event.kind, 40)}: {one_line(event.reason, 400)} ({runs})")

    def _round_finished(self, event: e.RoundFinished, view: SessionView) -> None:
        line = round_line(event, view)
        self._out.line(line)
        rejected = event.state is IterationState.ROLLED_BACK and event.measured and "  Rejected: " in line
        if rejected and event.reason:
            self._paragraph("Reason: ", event.reason)
        if event.summary:
            self._paragraph("Optimization: ", event.summary)

    def _paragraph(self, label: str, text: str) -> None:
        body = one_line(text, SUMMARY_CELLS)
        for line in wrap(f"{label}{body}", max(self._width - 2, 20)):
            self._out.line(f"  {line}")

    def _review(self, event: e.ReviewRequested, _view: SessionView) -> None:
        candidate = one_line(event.candidate, 40)
        self._say(
            _("#{round} waits for your decision: {why}").format(
                round=event.round, why=one_line(event.why, 300)
            ),
            "  "
            + _("Type in another shell: {command}").format(command=f"tachyon accept --candidate {candidate}"),
            "  " + _("or: {command}").format(command="tachyon revert"),
        )

    def _reverted(self, event: e.Reverted, _view: SessionView) -> None:
        rounds = ", ".join(f"#{number}" for number in event.rounds)
        self._say(
            _("Taken back: {rounds}. Best is now {ms}.").format(rounds=rounds, ms=ms_text(event.best_ms))
        )

    def _hint(self, event: e.HintChanged, _view: SessionView) -> None:
        line = {
            "queued": _("Hint queued: {text}"),
            "delivered": _("Hint delivered: {text}"),
            "answered": _("Hint answered: {text}"),
        }[event.status]
        self._say(line.format(text=one_line(event.text, 300)))

    def _control(self, event: e.ControlChanged, _view: SessionView) -> None:
        why = f" ({one_line(event.why, 200)})" if event.why else ""
        if event.running == "paused":
            command = "tachyon continue"
            self._say(_("Paused{why}. Go on with: {command}").format(why=why, command=command))
        elif event.running == "running" and self._paused:
            self._say(_("Going on."))
        elif event.running == "pausing":
            self._say(_("Pausing before the next step{why}.").format(why=why))
        elif event.running == "stopping":
            self._say(_("Stopping{why}.").format(why=why))
        self._paused = event.running in ("paused", "pausing")

    def _answered(self, event: e.CommandAnswered, _view: SessionView) -> None:
        if event.message and (self._verbose or not event.ok):
            self._say(f"{one_line(event.kind, 20)}: {clean(event.message)}")

    def _retrying(self, event: e.Retrying, _view: SessionView) -> None:
        self._say(
            _("The model did not answer ({why}); asked again in {wait}, attempt {attempt}.").format(
                why=one_line(event.why, 200), wait=duration_text(event.wait_seconds), attempt=event.attempt
            )
        )

    def _notice(self, event: e.Notice, _view: SessionView) -> None:
        if event.level != "debug" or self._verbose:
            self._say(*with_fix(clean(event.message), event.fix))

    def _remeasured(self, event: e.Remeasured, view: SessionView) -> None:
        self._out.line(
            _(
                "Final re-measurement: {base} -> {best}, {gain} (95% interval {low} to {high}, {pairs} pairs)"
            ).format(
                base=ms_text(event.base_ms),
                best=ms_text(event.best_ms),
                gain=percent_text(event.gain_percent, sign=True, digits=2),
                low=percent_text(event.low_percent, sign=True, digits=2),
                high=percent_text(event.high_percent, sign=True, digits=2),
                pairs=event.pairs,
            )
        )
        if not event.confirmed:
            self._out.line("  " + unconfirmed(view))

    def _finished(self, event: e.SessionFinished, view: SessionView) -> None:
        self._say(*failure_lines(event, view))
        if not got_going(event, view):
            if event.exit_code == 130:
                self._say(_("Interrupted before the first round; nothing was changed."))
            elif event.exit_code == 3:
                self._say(_("Ended: {reason}").format(reason=one_line(event.reason, 300)))
            return
        if event.exit_code != 1:
            self._say(_("Ended: {reason}").format(reason=one_line(event.reason, 300)))
        if event.confirmed is None:
            self._out.line(no_remeasurement(event, view))
        usage = view.usage
        if usage is not None:
            tokens = _("{count} tokens").format(count=count_text(usage.total_tokens))
            self._say(f"{duration_text(event.seconds)}, {tokens}, {cost_text(usage.total_usd)}")
        for line in summary_lines(event):
            self._out.line(line)


def no_remeasurement(event: e.SessionFinished, view: SessionView) -> str:
    """That there was no final re-measurement, and why."""
    if not view.accepted:
        return _("No final re-measurement: no round was accepted.")
    if event.exit_code == 130:
        return _("No final re-measurement: the session was interrupted. The gain is that of the rounds.")
    why = one_line(event.reason, 200)
    return _("No final re-measurement ({why}). The gain is that of the rounds.").format(why=why)
