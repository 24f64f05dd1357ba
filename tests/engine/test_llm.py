"""The model agent over real HTTP, through LiteLLM, against the fake model server."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tachyon_tui.agents.base import Agent, AgentError, Brief, ToolReply, ToolSpec
from tachyon_tui.agents.context import prompt
from tachyon_tui.agents.llm import LONGEST_SUMMARY, LlmAgent, LlmOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.doubles.model_server import ModelServer

# Importing LiteLLM takes seconds: one worker pays for it.
pytestmark = pytest.mark.xdist_group("litellm")

KEY = "sk-proj-0123456789abcdefghij"
BRIEF = Brief(0, 10, "best 80.68ms", "__global__ void k();", ("k.cu",), (), (), 40, 5, 1.0)
EDIT = {"name": "edit_source_file", "arguments": {"path": "k.cu", "old_text": "a", "new_text": "b" * 60}}
BUILD = {"name": "compile_kernel", "arguments": {}}
DONE = {"text": "I tried float4 loads."}


class FakeTools:
    """Records what it is asked; answers from ``replies`` by tool name."""

    def __init__(self, replies: dict[str, ToolReply] | None = None, calls_left: int = 40) -> None:
        self.replies = replies or {}
        self.log: list[tuple[str, str, str]] = []
        self.refused: list[str] = []
        self.hints: list[list[str]] = []
        self.on_call: Callable[[], None] = lambda: None
        self._left = calls_left

    def specs(self) -> Sequence[ToolSpec]:
        shape = {"type": "object", "properties": {}}
        return [ToolSpec(name, f"{name}.", shape) for name in ("edit_source_file", "compile_kernel")]

    def call(self, call_id: str, name: str, arguments: str) -> ToolReply:
        self._left -= 1
        self.log.append((call_id, name, arguments))
        self.on_call()
        return self.replies.get(name, ToolReply(f"result of {name} {len(self.log)}"))

    def refuse(self, call_id: str, name: str, arguments: str, why: str) -> ToolReply:
        self._left -= 1
        self.refused.append(arguments)
        return ToolReply(why, ok=False)

    def take_hints(self) -> Sequence[str]:
        return self.hints.pop(0) if self.hints else []

    @property
    def calls_left(self) -> int:
        return self._left


class Stopped(Exception):
    """What the engine raises to end a round."""


class FakeObserver:
    """Records what it is told; raises `Stopped` when ``stop`` says so."""

    def __init__(self, stop: Callable[[FakeObserver], bool] = lambda _self: False) -> None:
        self.checks: list[float] = []
        self.pieces: list[tuple[float, str]] = []
        self.paid: list[tuple[int, int, float | None]] = []
        self.retries: list[tuple[int, float, str]] = []
        self._stop = stop

    def check(self) -> None:
        self.checks.append(time.monotonic())
        if self._stop(self):
            raise Stopped

    def text(self, chunk: str) -> None:
        self.pieces.append((time.monotonic(), chunk))

    def usage(self, prompt_tokens: int, completion_tokens: int, usd: float | None) -> None:
        self.paid.append((prompt_tokens, completion_tokens, usd))

    def retrying(self, attempt: int, wait_seconds: float, why: str) -> None:
        self.retries.append((attempt, wait_seconds, why))

    @property
    def prose(self) -> str:
        return "".join(piece for _when, piece in self.pieces)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No key of the machine; afterwards nothing was printed and no thread is left."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "llm-requests"]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def agent(server: ModelServer, **options: Any) -> LlmAgent:
    values: dict[str, Any] = {
        "provider": "openai",
        "model": "fake-model",
        "api_base": server.base_url,
        "request_timeout": 5.0,
        "retry_wait": 0.002,
        **options,
    }
    return LlmAgent(LlmOptions(**values))


def play(
    rounds: list[list[dict[str, Any]]], tools: FakeTools | None = None, **options: Any
) -> tuple[str, FakeTools, FakeObserver, ModelServer]:
    """Play one round of the scenario to its end."""
    tools, observer = tools or FakeTools(), FakeObserver()
    with ModelServer(rounds) as server:
        said = agent(server, **options).play(BRIEF, tools, observer)
    assert server.failures == []
    return said, tools, observer, server


def refused(answer: dict[str, Any], **options: Any) -> tuple[AgentError, FakeObserver, ModelServer]:
    """The error that a round ends with when the provider always answers so."""
    observer = FakeObserver()
    with ModelServer([[answer] * 10]) as server, pytest.raises(AgentError) as caught:
        agent(server, **options).play(BRIEF, FakeTools(), observer)
    assert caught.value.fix
    return caught.value, observer, server


def wait_until(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it comes to hold: the server's own threads end in their own time."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def descriptors() -> int:
    """How many files and sockets this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_round_from_brief_to_summary() -> None:
    said, tools, observer, server = play(
        [
            [
                {
                    "text": "Memory bound: load float4.",
                    "calls": [EDIT, BUILD],
                    "split": 7,
                    "expect": "__global__ void k",
                },
                {"calls": [BUILD], "expect": ["result of edit_source_file 1", "result of compile_kernel 2"]},
                {**DONE, "expect": "result of compile_kernel 3", "expect_not": "result of compile_kernel 2"},
            ]
        ]
    )
    assert said == DONE["text"]
    assert [(name, json.loads(arguments)) for _id, name, arguments in tools.log] == [
        (EDIT["name"], EDIT["arguments"]),
        (BUILD["name"], {}),
        (BUILD["name"], {}),
    ]
    assert observer.prose == "Memory bound: load float4." + DONE["text"]
    assert observer.retries == []
    assert len(observer.paid) == 3
    assert all(prompt_tokens > 100 and usd is None for prompt_tokens, _written, usd in observer.paid)
    asked = server.requests[1]["messages"]
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "tool", "tool"]
    assert [call["id"] for call in asked[2]["tool_calls"]] == [
        message["tool_call_id"] for message in asked[3:]
    ]
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == [
        s.name for s in tools.specs()
    ]


def test_each_round_is_a_fresh_conversation() -> None:
    with ModelServer([[{"calls": [BUILD]}, DONE], [{"text": "second"}]]) as server:
        player = agent(server)
        assert player.play(BRIEF, FakeTools(), FakeObserver()) == DONE["text"]
        assert player.play(BRIEF, FakeTools(), FakeObserver()) == "second"
    assert [len(body["messages"]) for body in server.requests] == [2, 4, 2]


@pytest.mark.parametrize("arguments", ["{broken", "[1, 2]", '"text"', ""])
def test_arguments_that_are_no_object_reach_the_toolbox_as_written(arguments: str) -> None:
    _said, tools, _observer, server = play([[{"calls": [{"name": "no_such", "arguments": arguments}]}, DONE]])
    assert [(name, given) for _id, name, given in tools.log] == [("no_such", arguments or "{}")]
    kept = server.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(kept), dict)
    assert arguments in (kept, *json.loads(kept).values(), "")


def test_a_cut_call_is_refused_and_never_run() -> None:
    said, tools, _observer, _server = play(
        [[{"calls": [BUILD, EDIT], "cut": True}, {**DONE, "expect": prompt("cut_call", "en")}]]
    )
    assert said == DONE["text"]
    assert [name for _id, name, _arguments in tools.log] == [BUILD["name"]]
    assert len(tools.refused) == 1
    assert json.dumps(EDIT["arguments"]).startswith(tools.refused[0])


def test_a_call_that_is_whole_when_the_limit_strikes_is_refused_too() -> None:
    _said, tools, _observer, _server = play([[{"calls": [EDIT], "finish": "length"}, DONE]])
    assert tools.log == []
    assert [json.loads(given) for given in tools.refused] == [EDIT["arguments"]]


@pytest.mark.parametrize(
    ("answer", "reminder"),
    [({"text": ""}, "empty_answer"), ({"text": "so long " * 9, "cut": True}, "cut_answer")],
)
def test_an_empty_or_cut_answer_is_asked_for_again_but_not_for_ever(
    answer: dict[str, Any], reminder: str
) -> None:
    said, tools, _observer, _server = play(
        [[answer, {"calls": [BUILD], "expect": prompt(reminder, "en")}, DONE]]
    )
    assert (said, len(tools.log)) == (DONE["text"], 1)
    _said, _tools, _observer, server = play([[answer] * 10])
    assert len(server.requests) == 3


def test_the_round_ends_when_the_toolbox_says_so() -> None:
    tools = FakeTools({"edit_source_file": ToolReply("rolled back", round_over=True)})
    said, tools, _observer, server = play([[{"text": "Try tiling.", "calls": [EDIT, BUILD]}, DONE]], tools)
    assert said == "Try tiling."
    assert len(tools.log) == len(server.requests) == 1


def test_the_round_ends_when_no_call_is_left() -> None:
    said, _tools, _observer, server = play(
        [[{"text": "a", "calls": [BUILD, BUILD]}, DONE]], FakeTools(calls_left=2)
    )
    assert (said, len(server.requests)) == ("a", 1)


def test_hints_reach_the_model_before_the_next_request() -> None:
    tools = FakeTools()
    tools.on_call = lambda: tools.hints.append(["shuffles now"])
    _said, _tools, _observer, server = play(
        [[{"calls": [BUILD], "expect_not": "shuffles now"}, {**DONE, "expect": "shuffles now"}]], tools
    )
    last = server.requests[1]["messages"][-1]
    assert last["role"] == "user"
    assert last["content"].startswith(prompt("hint", "en", hints=""))


def test_the_language_is_the_agents() -> None:
    _said, _tools, _observer, server = play([[{"text": ""}, DONE]], language="zh")
    assert server.requests[0]["messages"][0]["content"] == prompt("system", "zh")
    assert server.requests[1]["messages"][-1]["content"] == prompt("empty_answer", "zh")


def test_a_long_summary_is_trimmed() -> None:
    long = " ".join(map(str, range(2000)))
    said, *_rest = play([[{"text": long}]])
    assert said == long[:LONGEST_SUMMARY]


def test_missing_token_counts_are_estimated_and_said_once() -> None:
    with ModelServer(
        [[{"calls": [BUILD], "no_usage": True}, {"text": "four words are here", "no_usage": True}]]
    ) as server:
        player, observer = agent(server), FakeObserver()
        player.play(BRIEF, FakeTools(), observer)
    assert player.usage_estimated
    assert observer.prose.count("estimated") == 1
    assert all(prompt_tokens > 100 and written > 0 for prompt_tokens, written, _usd in observer.paid)


def test_a_known_price_is_charged() -> None:
    _said, _tools, observer, server = play([[DONE]], model="gpt-4o")
    prompt_tokens, written, usd = observer.paid[0]
    assert server.requests[0]["model"] == "gpt-4o"
    # 2.50 and 10 USD per million tokens in LiteLLM's own list for this model.
    assert usd == pytest.approx(prompt_tokens * 2.5e-6 + written * 10e-6)


@pytest.mark.parametrize(
    "failure",
    [
        {"status": 429},
        {"status": 500},
        {"status": 503},
        {"status": 529},
        {"text": "half of a sentence that breaks off", "drop": True},
        {"text": "half of a sentence that breaks off", "eof": True},
        {"calls": [EDIT], "drop": True},
    ],
    ids=["429", "500", "503", "529", "drop", "eof", "drop-in-call"],
)
def test_a_passing_failure_is_retried_and_costs_nothing(failure: dict[str, Any]) -> None:
    said, tools, observer, server = play([[failure, {"calls": [BUILD]}, failure, failure, DONE]])
    assert said == DONE["text"]
    assert [name for _id, name, _arguments in tools.log] == [BUILD["name"]]
    assert [attempt for attempt, _wait, _why in observer.retries] == [1, 1, 2]
    assert all(why for _attempt, _wait, why in observer.retries)
    assert len(observer.paid) == 2
    assert len(server.requests) == 5


@pytest.mark.parametrize("stall", ["stall", "stall_midway"])
def test_silence_is_a_failure_after_the_timeout(stall: str) -> None:
    said, _tools, observer, _server = play([[{"text": "a b c", stall: 30.0}, DONE]], request_timeout=0.2)
    assert said == DONE["text"]
    assert len(observer.retries) == 1


def test_a_slow_answer_may_take_longer_than_the_timeout_between_two_pieces() -> None:
    said, _tools, observer, _server = play(
        [[{"text": "slow but steady", "stall": 0.4, "stall_midway": 0.4}]], request_timeout=0.6
    )
    assert (said, observer.retries) == ("slow but steady", [])


def test_an_endpoint_that_is_not_there_is_retried_then_named() -> None:
    server = ModelServer([])
    server.http.server_close()
    observer = FakeObserver()
    with pytest.raises(AgentError, match="3 attempts") as caught:
        agent(server, retries=2).play(BRIEF, FakeTools(), observer)
    assert len(observer.retries) == 2
    assert "endpoint" in caught.value.fix


def test_retries_end() -> None:
    error, observer, server = refused({"status": 503}, retries=2)
    assert "3 attempts" in error.message
    assert len(observer.retries) == 2
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "word", "fix"),
    [
        (400, "refused the request", "-m|model"),
        (401, "refused the key", "OPENAI_API_KEY"),
        (403, "does not allow", "-m"),
        (404, "does not know the model fake-model", "-m"),
    ],
)
def test_a_refusal_is_not_retried_and_shows_no_key(
    status: int, word: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    error, observer, server = refused({"status": status, "error": {"message": f"bad: {KEY} or sk-ab***9999"}})
    assert word in error.message
    assert any(option in error.fix for option in fix.split("|"))
    for text in (error.message, error.fix, str(error), repr(error.__cause__)):
        assert KEY not in text
        assert "9999" not in text
    assert observer.retries == []
    assert len(server.requests) == 1


def test_near_names_are_offered_for_a_wrong_one() -> None:
    error, _observer, _server = refused({"status": 404}, model="gpt-4oo")
    assert "gpt-4o" in error.fix


TOO_LONG = {
    "status": 400,
    "error": {
        "code": "context_length_exceeded",
        "message": "This model's maximum context length is 9 tokens",
    },
}


def test_a_full_context_window_drops_the_oldest_results_once() -> None:
    said, _tools, observer, server = play([[{"calls": [BUILD]}] * 4 + [TOO_LONG, DONE]])
    assert said == DONE["text"]
    assert observer.retries == []
    note = prompt("dropped_result", "en")
    results = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert results == [note, note, "result of compile_kernel 3", "result of compile_kernel 4"]


def test_a_context_window_that_stays_too_small_is_an_error() -> None:
    rounds = [[{"calls": [BUILD]}] * 4 + [TOO_LONG] * 3]
    with ModelServer(rounds) as server, pytest.raises(AgentError, match="context window"):
        agent(server).play(BRIEF, FakeTools(), FakeObserver())
    assert len(server.requests) == 6
    _error, _observer, server = refused(TOO_LONG)
    assert len(server.requests) == 1


@pytest.mark.parametrize("stall", ["stall", "stall_midway"])
def test_the_observer_can_end_the_wait_at_once(stall: str) -> None:
    observer = FakeObserver(lambda self: len(self.checks) > 15)
    with ModelServer([[{"text": "a b c", stall: 30.0}]]) as server:
        began = time.monotonic()
        with pytest.raises(Stopped):
            agent(server, request_timeout=60.0).play(BRIEF, FakeTools(), observer)
        assert time.monotonic() - began < 10
    checks = observer.checks
    assert (len(checks) - 1) / (checks[-1] - checks[0]) >= 10


def test_the_observer_can_end_the_wait_before_a_retry() -> None:
    observer = FakeObserver(lambda self: bool(self.retries))
    with (
        ModelServer([[{"status": 429, "headers": {"retry-after": "100"}}]]) as server,
        pytest.raises(Stopped),
    ):
        agent(server).play(BRIEF, FakeTools(), observer)
    assert [wait for _attempt, wait, _why in observer.retries] == [100.0]


def test_prose_comes_in_few_pieces() -> None:
    long = " ".join(map(str, range(2000)))
    said, _tools, observer, _server = play([[{"text": long}]])
    assert observer.prose == long
    times = [when for when, _piece in observer.pieces]
    assert len(times) <= 2 + 10 * (times[-1] - times[0])
    assert said == long[:LONGEST_SUMMARY]


@pytest.mark.parametrize(
    "answer", [DONE, {**DONE, "drop": True}, {**DONE, "stall_midway": 30.0}, {"status": 401}]
)
def test_nothing_is_left_open(answer: dict[str, Any]) -> None:
    """Neither after success nor after a failure or an abandoned request; unclosed clients would warn here."""

    def play_once() -> None:
        observer = FakeObserver(lambda self: len(self.checks) > 3)
        with ModelServer([[answer] * 3]) as server, contextlib.suppress(Stopped, AgentError):
            agent(server, retries=1).play(BRIEF, FakeTools(), observer)

    play_once()
    before = descriptors()
    play_once()
    play_once()
    gc.collect()
    assert wait_until(lambda: descriptors() <= before)


@pytest.mark.parametrize(
    ("provider", "model"), [("openai", "Qwen/Qwen3-Coder"), ("", "qwen3-coder"), ("hosted_vllm", "q")]
)
def test_a_local_endpoint_needs_no_key(provider: str, model: str) -> None:
    with ModelServer([[DONE]]) as server:
        player: Agent = agent(server, provider=provider, model=model)
        player.check()
        assert server.requests == []
        assert player.play(BRIEF, FakeTools(), FakeObserver()) == DONE["text"]
    assert server.requests[0]["model"] == model


def test_the_fake_runs_from_a_file_and_reports_what_was_not_met(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("// from a file\n")
    call = {"name": "edit_source_file", "arguments": {"path": "k.cu", "new_text": {"$file": "k.cu"}}}
    scenario = tmp_path / "scenario.json"
    scenario.write_text(json.dumps([[{"calls": [call]}, {"text": "x", "expect": "never said"}]]))
    port, record = tmp_path / "port", tmp_path / "requests.jsonl"
    program = Path(__file__).parents[1] / "doubles" / "model_server.py"
    command = [sys.executable, str(program), str(scenario), "--port-file", str(port), "--record", str(record)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert wait_until(port.exists, 30)
            base = f"http://127.0.0.1:{port.read_text().strip()}/v1"
            tools = FakeTools()
            player = LlmAgent(LlmOptions("openai", "m", base, request_timeout=5.0))
            with pytest.raises(AgentError, match="never said"):
                player.play(BRIEF, tools, FakeObserver())
        finally:
            server.terminate()
            _out, err = server.communicate(timeout=10)
    assert server.returncode == 1
    assert "never said" in err
    assert json.loads(tools.log[0][2])["new_text"] == "// from a file\n"
    assert [len(json.loads(line)["messages"]) for line in record.read_text().splitlines()] == [2, 4]
