"""The sessions of a project as a table, and the view of one without reading all of its journal."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from tachyon_tui.core.i18n import _
from tachyon_tui.core.session import LineFollower, SessionError, SessionPaths, parse_event, read_owner
from tachyon_tui.core.units import cost_text, duration_text, gain_percent, percent_text
from tachyon_tui.core.view import SessionView, fold
from tachyon_tui.frontends.text import clean, columns

_TYPE = re.compile(rb'"type":"(\w+)"')
_SUMMED = frozenset(
    {
        b"session_started",
        b"calibrated",
        b"round_started",
        b"state_changed",
        b"round_finished",
        b"reverted",
        b"control_changed",
        b"usage",
        b"remeasured",
        b"session_finished",
    }
)
"""Events that the table rests on; the others (prose, tools, diagnoses) make up most of a journal."""


def running(paths: SessionPaths) -> bool:
    """True while an engine holds the session."""
    owner = read_owner(paths.lock)
    return owner is not None and owner.alive()


def brief_view(paths: SessionPaths) -> SessionView:
    """The view of a session without its stream and diagnoses. Raises `SessionError` on a damaged journal."""
    view = SessionView()
    for line in LineFollower(paths.journal).lines():
        kind = _TYPE.search(line)
        if kind is None or kind[1] in _SUMMED:
            event = parse_event(line)
            if event is not None:
                view = fold(view, event)
    return view


def sessions_table(sessions: Iterable[SessionPaths]) -> list[str]:
    """One line per session below a heading: id, state, rounds, best gain, cost, age."""
    rows = [(_("SESSION"), _("STATE"), _("ROUNDS"), _("GAIN"), _("COST"), _("AGE"))]
    rows += [_row(paths) for paths in sessions]
    return columns(rows)


def _row(paths: SessionPaths) -> tuple[str, str, str, str, str, str]:
    name = clean(paths.id, 80)
    try:
        view = brief_view(paths)
    except SessionError:
        return (name, _("damaged"), "", "", "", "")
    gain = "-"
    if view.finished is not None and view.finished.gain_percent is not None:
        gain = percent_text(view.finished.gain_percent, sign=True)
    elif view.base_ms and view.best_ms is not None and view.accepted:
        gain = percent_text(gain_percent(view.base_ms, view.best_ms), sign=True)
    cost = cost_text(view.usage.total_usd) if view.usage is not None else "-"
    age = duration_text(max(time.time() - view.now, 0.0)) if view.now else "-"
    return (name, _state(paths, view), str(len(view.rounds)), gain, cost, age)


def _state(paths: SessionPaths, view: SessionView) -> str:
    if running(paths):
        return _("paused") if view.running == "paused" else _("running")
    if view.finished is None:
        return _("broken off")
    if view.finished.exit_code == 0:
        return _("improved")
    if view.finished.exit_code == 3:
        return _("no improvement")
    return _("interrupted") if view.finished.exit_code == 130 else _("error")
