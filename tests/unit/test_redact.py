"""No secret survives redaction, and ordinary text does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachyon_tui.core.redact import REDACTED, is_secret_name, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Incorrect API key provided: sk-proj-abcDEF0123456789.", "abcDEF0123456789"),
        ("Incorrect API key provided: sk-ab***********wxyz.", "wxyz"),
        ("anthropic sk-ant-api03-Zz9_-Zz9 refused", "Zz9_-Zz9"),
        ("Authorization: Bearer eyJhbGciOi.J9eyJz-dWIi_OiIx==", "eyJz"),
        ("header 'authorization': 'bearer 0123456789abcdef'", "0123456789abcdef"),
        ("api_key='0123456789abcdef' x-api-key: 0123456789abcdef", "0123456789abcdef"),
        ("POST https://ann:pa55word@gateway.example:8443/v1/chat", "pa55word"),
        ("socks5://:hunter2hunter2@proxy.example", "hunter2hunter2"),
        ("key AIzaSyA1234567890abcdefghijk and AKIAABCDEFGHIJKLMNOP", "AIzaSyA"),
        ("ghp_abcdefghijklmnop gsk_abcdefghijk nvapi-abcdefghijk", "abcdefghijk"),
        ("xoxb-0123456789 and glpat-0123456789", "0123456789"),
        ("API-KEY: 0123456789ABCDEF", "0123456789ABCDEF"),
        ("AUTHORIZATION: BEARER 0123456789ABCDEF", "0123456789ABCDEF"),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, secret: str) -> None:
    assert secret in text
    out = redact(text, {})
    assert secret not in out
    assert REDACTED in out


@pytest.mark.parametrize(
    "text",
    [
        "__shared__ float smem[256]; // task-parallel sk- bearer of news",
        "https://gateway.example:8443/v1 and git+ssh://git@forge.example/repo.git",
        "OPENAI_API_KEY is not set: export OPENAI_API_KEY=…",
        "int key = tokens[i] & secret_mask; a[b] @ c: d",
        "risk-averse disk-bound ask-me-anything",
        "",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text, {}) == text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("OPENAI_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("GH_TOKEN", True),
        ("PGPASSWORD_FILE", False),
        ("DB_PASSWORD", True),
        ("MY_APIKEY", True),
        ("KEYBOARD_LAYOUT", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("PATH", False),
    ],
)
def test_variables_are_known_by_their_words(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_values_of_secret_variables_go_and_no_tail_stays() -> None:
    environment = {
        "A_TOKEN": "longvalue",
        "B_TOKEN": "longvalue-and-more",
        "C_KEY": "short",
        "HOME": "/home/ann",
    }
    assert redact("x longvalue-and-more y longvalue z short /home/ann", environment) == (
        f"x {REDACTED} y {REDACTED} z short /home/ann"
    )


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "plain words here")
    assert redact("say plain words here") == f"say {REDACTED}"


@given(st.text(), st.text(alphabet=st.characters(categories=["L", "N"]), min_size=8))
def test_redaction_is_idempotent_and_complete(text: str, value: str) -> None:
    out = redact(text + value, {"X_SECRET": value})
    assert value not in out or value in REDACTED
    assert redact(out, {"X_SECRET": value}) == out
