"""What NVIDIA's rules say of a launch, as plain text: hints only, for some of their estimates are wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from tachyon_tui.core.profile import Advice

_MARKUP = re.compile(r"@(section|url|sass|source):([^@]*)@")
_KINDS: dict[int, Literal["ok", "optimization", "warning", "error"]] = {
    1: "ok",
    2: "optimization",
    3: "warning",
    4: "error",
}
"""`ncu_report` message types; 0 is an empty entry."""
_SCOPES: dict[int, Literal["local", "global"]] = {1: "local", 2: "global"}


def strip_markup(text: str) -> str:
    """The text alone of ncu's links.

    ``@section:ID:text@``, ``@url:text:link@``, ``@sass:address:text@``, ``@source:file:line:text@``
    """
    return " ".join(_MARKUP.sub(_plain, text).split())


def _plain(match: re.Match[str]) -> str:
    kind, content = match.groups()
    if kind == "url":
        return str(re.split(r":(?=\w+://|/)", content, maxsplit=1)[0])
    return str(content.rsplit(":", 1)[-1])


def advice(results: Iterable[Mapping[str, Any]]) -> tuple[Advice, ...]:
    """Rule results as `ncu_report` gives them, without empty and repeated entries."""
    found: dict[tuple[str, str], Advice] = {}
    for result in results:
        message = result.get("rule_message") or {}
        kind = _KINDS.get(int(message.get("type") or 0))
        text = strip_markup(message.get("message") or "")
        if kind is None or not text:
            continue
        speedup = result.get("speedup_estimation") or {}
        scope = _SCOPES.get(int(speedup.get("type") or 0))
        item = Advice(
            rule=str(result.get("rule_identifier") or ""),
            title=strip_markup(message.get("title") or "") or str(result.get("name") or ""),
            message=text,
            kind=kind,
            speedup_percent=float(speedup["speedup"]) if scope else None,
            scope=scope or "",
        )
        found.setdefault((item.rule, item.message), item)
    return tuple(found.values())
