"""Secrets out of text that goes to a screen, a log or a journal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

REDACTED = "[redacted]"
SHORTEST_SECRET = 8
"""Characters; a shorter value of a variable ("1", "true", "main") would take ordinary words with it."""

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE
)
# Forms in which providers and forges issue keys; some echo a refused key with its middle starred out.
_ISSUED_KEY = re.compile(
    r"\b(?:(?:sk|pk|rk)-[\w*.-]{6,}|(?:gsk_|xai-|hf_|nvapi-|r8_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-)[\w*.-]{8,}"
    r"|AIza[\w-]{20,}|AKIA[0-9A-Z]{12,})"
)
_BEARER = re.compile(r"\b(bearer\s+)[\w.~+/*-]{8,}=*", re.IGNORECASE)
_NAMED_KEY = re.compile(r"(\bapi[-_]?key[\"']?\s*[:=]\s*[\"']?)[\w.~+/*-]{8,}=*", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:\"']*:[^\s/@\"']+@", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret: its words tell (KEY, TOKEN, SECRET, PASSWORD)."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """``text`` without keys, bearer tokens, logins in URLs, and values of secret variables of ``environment``.

    ``environment`` is this process's own unless given.
    """
    variables = os.environ if environment is None else environment
    values = {v for name, v in variables.items() if len(v) >= SHORTEST_SECRET and is_secret_name(name)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    text = _URL_LOGIN.sub(rf"\1{REDACTED}@", text)
    text = _ISSUED_KEY.sub(REDACTED, text)
    text = _NAMED_KEY.sub(rf"\1{REDACTED}", text)
    return _BEARER.sub(rf"\1{REDACTED}", text)
