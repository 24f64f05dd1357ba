"""What the model agent says before any request."""

import subprocess
import sys

import pytest

from tachyon_tui.agents.base import AgentError
from tachyon_tui.agents.llm import LlmAgent, LlmOptions

# Importing LiteLLM takes seconds: one worker pays for it.
pytestmark = pytest.mark.xdist_group("litellm")

KEY = "sk-proj-0123456789abcdefghij"


@pytest.mark.parametrize(
    ("provider", "model", "variable"),
    [
        ("openai", "gpt-4o", "OPENAI_API_KEY"),
        ("anthropic", "claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("", "deepseek/deepseek-chat", "DEEPSEEK_API_KEY"),
    ],
)
def test_check_wants_a_key_and_says_which(
    provider: str, model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (variable, "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AgentError) as caught:
        LlmAgent(LlmOptions(provider, model)).check()
    assert variable in caught.value.message
    assert variable in caught.value.fix
    monkeypatch.setenv(variable, KEY)
    LlmAgent(LlmOptions(provider, model)).check()


@pytest.mark.parametrize(
    ("options", "word", "fix"),
    [
        (LlmOptions(), "No model", "-m"),
        (LlmOptions("opnai", "gpt-4o"), "No known provider", "openai"),
        (LlmOptions("ollama", "llama3"), "no tool calls", "-p ollama_chat"),
    ],
)
def test_check_wants_a_model_a_provider_and_tools(options: LlmOptions, word: str, fix: str) -> None:
    with pytest.raises(AgentError, match=word) as caught:
        LlmAgent(options).check()
    assert fix in caught.value.fix


def test_price_known() -> None:
    assert LlmAgent(LlmOptions("openai", "gpt-4o")).price_known()
    assert LlmAgent(LlmOptions("", "anthropic/claude-sonnet-4-5")).price_known()
    assert not LlmAgent(LlmOptions("openai", "fake-model")).price_known()


def test_importing_the_module_does_not_import_litellm() -> None:
    program = "import sys, tachyon_tui.agents.llm; sys.exit('litellm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
