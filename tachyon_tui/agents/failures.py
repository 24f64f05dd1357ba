"""What a failed request to a model means: whether and when to try again, and what to tell the person."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import email.utils
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from tachyon_tui.agents.base import AgentError
from tachyon_tui.core.i18n import _
from tachyon_tui.core.redact import redact

LONGEST_RETRY_AFTER = 120.0
LONGEST_BACKOFF = 60.0

_RETRIED = frozenset({408, 409, 425, 429})


def failure(
    error: BaseException,
    model: str,
    provider: str,
    *,
    variables: Sequence[str],
    known_models: Iterable[str],
    attempts: int,
) -> AgentError:
    """What a failed request means to the person who started it.

    ``variables`` are those that may hold the provider's key, ``known_models`` the names to look for a near one in,
    ``attempts`` the requests made.
    """
    status, why = status_of(error), why_failed(error)
    if is_too_long(error):
        return agent_error(
            _("The conversation does not fit the context window of {model}.").format(model=model),
            _("Choose a model with a larger window, or narrow the work with -k or allowed_edit_paths."),
        )
    if status == 401:
        return agent_error(
            _("{provider} refused the key: {why}").format(provider=provider, why=why),
            _("Set {variable} to a valid key and start again.").format(variable=_(" or ").join(variables)),
        )
    if status == 403:
        return agent_error(
            _("{provider} does not allow this key to use {model}: {why}").format(
                provider=provider, model=model, why=why
            ),
            _("Ask for access, or choose another model with -m."),
        )
    if status == 404:
        near = difflib.get_close_matches(model, known_models, 3)
        hint = _("Near names: {names}.").format(names=", ".join(near)) if near else ""
        return agent_error(
            _("{provider} does not know the model {model}: {why}").format(
                provider=provider, model=model, why=why
            ),
            _("Check the name given with -m, and the endpoint.") + (f" {hint}" if hint else ""),
        )
    if is_transient(error):
        return agent_error(
            _("{provider} did not answer after {count} attempts: {why}").format(
                provider=provider, count=attempts, why=why
            ),
            _("Check the network, the endpoint and the provider's status, then start again."),
        )
    return agent_error(
        _("{provider} refused the request: {why}").format(provider=provider, why=why),
        _("Check the model's name, that it takes tool calls, and the account's balance."),
    )


def retry_wait(attempt: int, first: float, headers: Mapping[str, str]) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (from 0).

    What the provider asks for in ``retry-after`` (seconds or a date, RFC 9110 section 10.2.3) counts, up to
    `LONGEST_RETRY_AFTER`; otherwise ``first`` doubled each time, up to `LONGEST_BACKOFF`, times 0.5 to 1.5 by
    chance so that many clients do not come back together.
    """
    asked = headers.get("retry-after", "").strip()
    seconds: float | None = None
    if re.fullmatch(r"\d+(\.\d+)?", asked):
        seconds = float(asked)
    elif asked:
        with contextlib.suppress(ValueError):
            seconds = email.utils.parsedate_to_datetime(asked).timestamp() - time.time()
    if seconds is not None:
        return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
    return min(first * 2.0**attempt, LONGEST_BACKOFF) * random.uniform(0.5, 1.5)


def is_too_long(error: BaseException) -> bool:
    """The conversation exceeds the model's context window."""
    return any(kind.__name__ == "ContextWindowExceededError" for kind in type(error).__mro__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that LiteLLM gives each of its exceptions."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def is_transient(error: BaseException) -> bool:
    status = status_of(error)
    if status is None:
        return isinstance(error, (asyncio.TimeoutError, OSError))
    return status in _RETRIED or status >= 500


def response_headers(error: BaseException) -> Mapping[str, str]:
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or getattr(error, "litellm_response_headers", None) or {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


def why_failed(error: BaseException) -> str:
    """The provider's own words, in one short line without LiteLLM's chain of class names."""
    if isinstance(error, asyncio.TimeoutError):
        return _("no answer in time")
    text = " ".join(str(error).split())
    text = re.sub(r"^(?:(?:litellm\.)?\w*(?:Error|Exception|Timeout|Exceeded)\w*(?::| -) )+", "", text)
    return redact(text)[:300] or type(error).__name__


def agent_error(message: str, fix: str) -> AgentError:
    return AgentError(redact(message), redact(fix))
