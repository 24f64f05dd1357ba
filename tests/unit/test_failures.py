"""When a failed request to a model is tried again, and what is said of it."""

import asyncio

import pytest

from tachyon_tui.agents.failures import LONGEST_RETRY_AFTER, is_transient, retry_wait, why_failed


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after": "0"}, 0, 0),
        ({"retry-after": "1.5"}, 1.5, 1.5),
        ({"retry-after": "86400"}, LONGEST_RETRY_AFTER, LONGEST_RETRY_AFTER),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONGEST_RETRY_AFTER, LONGEST_RETRY_AFTER),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"retry-after": "soon"}, 4, 12),
        ({}, 4, 12),
    ],
)
def test_the_wait_before_a_retry(headers: dict[str, str], low: float, high: float) -> None:
    assert low <= retry_wait(3, 1.0, headers) <= high
    assert retry_wait(1000, 1.0, {}) <= 90


class HttpError(Exception):
    """Carries a status as LiteLLM's exceptions do."""

    def __init__(self, status_code: int, words: str = "") -> None:
        super().__init__(words)
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        *[(HttpError(status), True) for status in (408, 409, 429, 500, 502, 503, 504, 529)],
        *[(HttpError(status), False) for status in (400, 401, 402, 403, 404, 422)],
        (asyncio.TimeoutError(), True),
        (ConnectionResetError(), True),
        (ValueError("a bug"), False),
    ],
)
def test_what_passes_by_itself(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("litellm.RateLimitError: RateLimitError: OpenAIException - slow down 429", "slow down 429"),
        ("litellm.BadRequestError: ContextWindowExceededError: OpenAIException - too\n long", "too long"),
        ("refused sk-proj-0123456789", "refused [redacted]"),
        ("", "HttpError"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_the_reason_is_the_providers_own_words(words: str, said: str) -> None:
    assert why_failed(HttpError(429, words)) == said
