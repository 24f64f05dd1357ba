"""Secrets out of text that goes to a screen, a log or a journal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache

REDACTED = "[redacted]"
SHORTEST_SECRET = 8
"""Characters; a shorter value of a variable ("1", "true", "main") would take ordinary words with it."""

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE
)
# Forms in which providers and forges issue keys; some echo a refused key with its middle starred out.
_SHORT_KEYS = ("sk-", "pk-", "rk-")
_LONG_KEYS = (
    *("gsk_", "xai-", "hf_", "nvapi-", "r8_", "glpat-", "xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
)
_ISSUED_KEY = re.compile(
    rf"\b(?:(?:{'|'.join(_SHORT_KEYS)})[\w*.-]{{6,}}|(?:{'|'.join(_LONG_KEYS)})[\w*.-]{{8,}}"
    r"|AIza[\w-]{20,}|AKIA[0-9A-Z]{12,})"
)
_BEARER = re.compile(r"\b(bearer\s+)[\w.~+/*-]{8,}=*", re.IGNORECASE)
_NAMED_KEY = re.compile(r"(\bapi[-_]?key[\"']?\s*[:=]\s*[\"']?)[\w.~+/*-]{8,}=*", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(://)[^\s/@:\"']*:[^\s/@\"']+@")
_FORMS = (
    (_URL_LOGIN, ("://",), rf"\1{REDACTED}@"),
    (_ISSUED_KEY, (*_SHORT_KEYS, *_LONG_KEYS, "aiza", "akia"), REDACTED),
    (_NAMED_KEY, ("key",), rf"\1{REDACTED}"),
    (_BEARER, ("bearer",), rf"\1{REDACTED}"),
)
"""Each form with the lower-case pieces of which it holds one, so that most texts need no search by pattern, and with
what takes its place."""


@lru_cache(maxsize=1024)
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
    small = text.lower()
    for pattern, pieces, instead in _FORMS:
        if any(piece in small for piece in pieces):
            text = pattern.sub(instead, text)
    return text
