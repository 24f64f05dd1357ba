"""The results of a session as Markdown; text from outside cannot break out of its cell or fence."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tachyon_tui.core.i18n import _
from tachyon_tui.core.session import JournalReader, SessionPaths
from tachyon_tui.core.units import cost_text, count_text, duration_text, ms_text, percent_text
from tachyon_tui.core.view import RoundView, SessionView, fold_all
from tachyon_tui.frontends.plain import SYMBOLS, no_remeasurement, summary_lines, unconfirmed
from tachyon_tui.frontends.text import clean, one_line

DIFF_LIMIT = 200_000
"""Characters of one diff that are shown."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$-])")


def export(paths: SessionPaths) -> str:
    """The session as a Markdown document. Raises `SessionError` when the journal is damaged."""
    view = fold_all(JournalReader(paths).events())
    parts = [
        _heading(paths, view),
        _result(view),
        _rounds(view),
        _remeasurement(view),
        _diffs(paths, view),
        _commits(view),
        _hints(view),
        _machine(view),
        _settings(paths),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def inline(text: str, cells: int = 400) -> str:
    """Outside text on one line with every Markdown and HTML character escaped; fit for a table cell."""
    return _SPECIAL.sub(r"\\\1", one_line(text, cells))


def fence(text: str, language: str = "") -> list[str]:
    """Outside text in a fence longer than any run of backticks in it."""
    body = clean(text).rstrip("\n")
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    ticks = "`" * max(3, longest + 1)
    return [ticks + language, *body.split("\n"), ticks]


def _heading(paths: SessionPaths, view: SessionView) -> list[str]:
    program = view.started.program if view.started else paths.id
    return ["# " + _("Tachyon evolve: {program}").format(program=inline(program, 120))]


def _result(view: SessionView) -> list[str]:
    finished = view.finished
    if finished is None:
        return [_("The session has not ended.")]
    lines = []
    if finished.base_ms is not None:
        title, best = summary_lines(finished)
        lines += ["```", title, best, "```", ""]
    lines.append(
        _("Ended: {reason}").format(reason=inline(finished.reason))
        + "  \n"
        + _("Time: {time}").format(time=duration_text(finished.seconds))
    )
    if view.usage is not None:
        tokens = count_text(view.usage.total_tokens)
        cost = cost_text(view.usage.total_usd)
        lines[-1] += "  \n" + _("Model: {tokens} tokens, {cost}").format(tokens=tokens, cost=cost)
    return lines


def _rounds(view: SessionView) -> list[str]:
    if not view.rounds:
        return ["## " + _("Rounds"), "", _("There was no round.")]
    heads = (
        _("Round"),
        _("State"),
        _("GPU time"),
        _("Against the best"),
        _("Against the original"),
        _("What"),
    )
    lines = ["## " + _("Rounds"), "", _row(heads), "|---|---|---:|---:|---:|---|"]
    for item in view.rounds:
        state = f"{SYMBOLS.get(item.state, '·')} {item.state}"
        if item.reverted:
            state += " (" + _("taken back") + ")"
        what = inline(item.reason)
        if item.summary:
            what += "<br>" + inline(item.summary)
        lines.append(
            _row(
                (
                    f"#{item.number}",
                    state,
                    ms_text(item.ms),
                    percent_text(item.change_percent, sign=True),
                    percent_text(item.total_percent, sign=True),
                    what,
                )
            )
        )
    return lines


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _remeasurement(view: SessionView) -> list[str]:
    lines = ["## " + _("Final re-measurement"), ""]
    measured = view.remeasured
    if measured is None:
        if view.finished is None:
            return []
        return [*lines, inline(no_remeasurement(view.finished, view))]
    lines += [
        _row((_("Original"), _("Best"), _("Gain"), _("95% interval"), _("Pairs"))),
        "|---:|---:|---:|---:|---:|",
        _row(
            (
                ms_text(measured.base_ms),
                ms_text(measured.best_ms),
                percent_text(measured.gain_percent, sign=True, digits=2),
                f"{percent_text(measured.low_percent, sign=True, digits=2)} … "
                f"{percent_text(measured.high_percent, sign=True, digits=2)}",
                str(measured.pairs),
            )
        ),
    ]
    if not measured.confirmed:
        lines += ["", inline(unconfirmed(view))]
    return lines


def _diffs(paths: SessionPaths, view: SessionView) -> list[str]:
    lines: list[str] = []
    for item in view.accepted:
        diff = _patch(paths, item) or item.diff
        lines += ["", "### " + _("Round {round}").format(round=item.number), ""]
        if not diff:
            lines.append(_("The patch is no longer there."))
            continue
        lines += fence(diff[:DIFF_LIMIT], "diff")
        if len(diff) > DIFF_LIMIT:
            lines += ["", _("(cut after {count} characters)").format(count=count_text(DIFF_LIMIT))]
    return ["## " + _("Accepted changes"), *lines] if lines else []


def _patch(paths: SessionPaths, item: RoundView) -> str:
    """The round's patch file; empty when it is gone or lies outside of the session."""
    if not item.patch:
        return ""
    file = (paths.folder / item.patch).resolve()
    if not file.is_relative_to(paths.folder.resolve()) or not file.is_file():
        return ""
    return file.read_text("utf-8", "replace")


def _commits(view: SessionView) -> list[str]:
    commits = [
        f"- `{re.sub('[^0-9A-Za-z]', '', item.commit)}` " + _("Round {round}").format(round=item.number)
        for item in view.accepted
        if item.commit
    ]
    return ["## " + _("Commits"), "", *commits] if commits else []


def _hints(view: SessionView) -> list[str]:
    if not view.hints:
        return []
    states = {"queued": _("queued"), "delivered": _("delivered"), "answered": _("answered")}
    hints = [f"- {inline(hint.text, 2000)} ({states[hint.status]})" for hint in view.hints]
    return ["## " + _("Hints"), "", *hints]


def _machine(view: SessionView) -> list[str]:
    started = view.started
    if started is None:
        return []
    facts = [
        (_("Machine"), started.machine),
        (_("Instrument"), started.instrument),
        (_("Agent"), started.agent),
        (_("Target kernel"), started.target_kernel),
        (_("git HEAD at the start"), started.head),
        (_("Started"), time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(started.time))),
    ]
    calibration = view.calibration
    if calibration is not None:
        noise = percent_text(calibration.noise_percent, digits=2)
        facts.append((_("Noise"), noise))
        facts.append((_("Output check"), calibration.oracle))
    rows = [_row((name, inline(value))) for name, value in facts if value]
    return ["## " + _("Machine and instruments"), "", _row((_("What"), _("Value"))), "|---|---|", *rows]


def _settings(paths: SessionPaths) -> list[str]:
    text = paths.settings.read_text("utf-8", "replace") if paths.settings.is_file() else ""
    if not text:
        return []
    return ["## " + _("Settings"), "", *fence(text, "json" if _is_json(text) else "")]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def write_export(paths: SessionPaths, file: Path) -> None:
    """Write the export to ``file``, whole or not at all. Raises `OSError` and `SessionError`."""
    text = export(paths)
    part = file.with_name(f".{file.name}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
