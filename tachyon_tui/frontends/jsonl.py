"""Every event as one JSON line on stdout; the last one, `session_finished`, is the summary."""

from __future__ import annotations

import json
import math
from typing import Any, TextIO

from tachyon_tui.core.session import SessionError
from tachyon_tui.core.view import SessionView
from tachyon_tui.frontends.plain import with_fix
from tachyon_tui.frontends.text import LineWriter, clean


def json_line(event: Any) -> str:
    """The event as strict JSON in ASCII, so that nothing in it can reach a terminal; NaN and infinity are null."""
    data = finite(event.model_dump(mode="json"))
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("\x7f", "\\u007f")


def finite(value: Any) -> Any:
    """``value`` with every NaN and infinity in it as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


class JsonReporter:
    """Events as JSON lines."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = LineWriter(out)
        self._err = LineWriter(err)

    def event(self, event: Any, _view: SessionView) -> None:
        """Print the event."""
        self._out.line(json_line(event))

    def failed(self, error: SessionError) -> None:
        """The journal cannot be read."""
        for line in with_fix(clean(error.message), error.fix):
            self._err.line(line)
