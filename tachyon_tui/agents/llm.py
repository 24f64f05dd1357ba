"""The agent that is a language model, reached through LiteLLM: streaming, tool calls, retries, cost.

LiteLLM takes seconds to import, so it is imported inside functions only (see `_litellm`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import difflib
import json
import logging
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tachyon_tui.agents.base import AgentError, Brief, Observer, Tools
from tachyon_tui.agents.context import Message, hint_message, opening, prompt, tools_for_model
from tachyon_tui.agents.failures import (
    agent_error,
    failure,
    is_too_long,
    is_transient,
    response_headers,
    retry_wait,
    status_of,
    why_failed,
)
from tachyon_tui.core.i18n import Language, _

POLL_SECONDS = 0.05
TEXT_SECONDS = 0.1
"""Prose is passed on at most once in this time."""
CLOSE_SECONDS = 5.0
LONGEST_SUMMARY = 2000
"""Characters of `LlmAgent.play`'s return value."""
KEPT_RESULTS = 2
"""The newest tool results stay when the conversation must shrink: the last build errors or verdict are among them."""
MOST_REMINDERS = 2
"""A round: how often an empty or cut answer is asked for again."""

_CACHES_ON_REQUEST = frozenset({"anthropic", "bedrock", "vertex_ai"})


@dataclass(frozen=True)
class LlmOptions:
    """Which model, and how patiently."""

    provider: str = ""
    """LiteLLM's name of the provider; may also stand before the model: ``provider/model``."""
    model: str = ""
    api_base: str = ""
    retries: int = 5
    request_timeout: float = 300.0
    """Seconds until the first byte, and between two pieces of an answer."""
    language: Language = "en"
    max_output_tokens: int | None = None
    retry_wait: float = 1.0
    """Seconds before the first retry, doubled each time, unless the provider says how long."""


@dataclass(frozen=True)
class _Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class _Answer:
    text: str
    calls: tuple[_Call, ...]
    cut: bool
    """Ended by the length limit."""
    message: Message
    """The answer as it goes into the conversation."""
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    estimated: bool
    """The provider sent no token counts."""


@cache
def _litellm() -> Any:
    """LiteLLM, kept from the network, from .env files and from stdout and stderr."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"  # otherwise it reads keys from a .env file above its own folder
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("LiteLLM"):
            logger = logging.getLogger(name)
            logger.handlers = [logging.NullHandler()]
            logger.propagate = False
    return litellm


@contextlib.contextmanager
def _litellm_warnings() -> Iterator[None]:
    """The warning filters that LiteLLM sets at its import, and needs.

    Its modules come in lazily and use pydantic in ways that warn. Where a host has reset the filters since, or turns
    warnings into errors, its requests would fail.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* attribute on the instance is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*`ReadOnly` qualifier", UserWarning)
        yield


class LlmAgent:
    """An `Agent` played by a model; each round is a fresh conversation."""

    def __init__(self, options: LlmOptions) -> None:
        self.options = options
        self.usage_estimated = False
        """True once a provider sent no token counts, so that they are LiteLLM's estimate."""

    @_litellm_warnings()
    def check(self) -> None:
        """Raise `AgentError` for a missing or unknown model, a missing key or a model without tools; no request."""
        name, provider = self._model()
        supported = self._parameters(name, provider)
        if supported and "tools" not in supported:
            raise agent_error(
                _("{model} takes no tool calls through the provider {provider}.").format(
                    model=name, provider=provider
                ),
                _("Choose another model with -m (for Ollama: -p ollama_chat)."),
            )
        missing = self._missing_keys(name)
        if missing and self._api_key(name, provider) is None:
            raise agent_error(
                _("No key for {provider}: {variables} is not set.").format(
                    provider=provider, variables=_(" or ").join(missing)
                ),
                _("Run: export {variable}=…, or name a local endpoint with --api-base.").format(
                    variable=missing[0]
                ),
            )

    @_litellm_warnings()
    def price_known(self) -> bool:
        """Whether a limit in money can be kept. Raises `AgentError` as `check` does for the model's name."""
        litellm = _litellm()
        name, _provider = self._model()
        try:
            litellm.cost_per_token(model=name, prompt_tokens=1, completion_tokens=1)
        except litellm.exceptions.ModelNotMappedError:
            return False
        return True

    @_litellm_warnings()
    def play(self, brief: Brief, tools: Tools, observer: Observer) -> str:
        """Play one round; the model's last words, at most `LONGEST_SUMMARY` characters.

        Raises `AgentError`; what ``observer`` raises passes through and abandons the request.
        """
        language = self.options.language
        messages = opening(brief, language)
        summary, reminders = "", 0
        with _event_loop() as loop:
            while True:
                hints = tools.take_hints()
                if hints:
                    messages.append(hint_message(hints, language))
                answer = self._ask(loop, messages, tools_for_model(tools.specs()), observer)
                summary = answer.text.strip() or summary
                if answer.calls:
                    messages.append(answer.message)
                    if self._run_calls(answer, tools, messages) or tools.calls_left <= 0:
                        break
                elif (answer.cut or not answer.text.strip()) and reminders < MOST_REMINDERS:
                    reminders += 1
                    # Chat templates want an assistant's turn between two of the user's, and no provider an empty one.
                    messages.append(answer.message if answer.text else {"role": "assistant", "content": "…"})
                    reminder = prompt("cut_answer" if answer.cut else "empty_answer", language)
                    messages.append({"role": "user", "content": reminder})
                else:
                    break
        return summary[:LONGEST_SUMMARY]

    def _run_calls(self, answer: _Answer, tools: Tools, messages: list[Message]) -> bool:
        """Run the calls in order and append their results; True when the round is over."""
        for number, call in enumerate(answer.calls, start=1):
            if answer.cut and number == len(answer.calls):
                # What the model was writing when the limit struck: even valid JSON may be half of what it meant.
                why = prompt("cut_call", self.options.language)
                reply = tools.refuse(call.id, call.name, call.arguments, why)
            else:
                reply = tools.call(call.id, call.name, call.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": reply.text})
            if reply.round_over:
                return True
        return False

    def _ask(
        self,
        loop: asyncio.AbstractEventLoop,
        messages: list[Message],
        tools: list[dict[str, Any]],
        observer: Observer,
    ) -> _Answer:
        """One answer, after as many attempts as it takes and is allowed."""
        name, provider = self._model()
        attempt, shrunk = 0, False
        while True:
            outcome = _watch(loop, self._request(name, provider, messages, tools), observer)
            if isinstance(outcome, _Answer):
                self._account(outcome, observer)
                return outcome
            error = outcome
            if is_too_long(error):
                if not shrunk and _drop_oldest_results(messages, self.options.language):
                    shrunk = True
                    continue
                raise self._failure(name, provider, error, attempt + 1) from None
            if not is_transient(error) or attempt >= self.options.retries:
                # The provider's words can hold a key: they stay out of tracebacks. An error of another kind is a bug.
                cause = error if status_of(error) is None else None
                raise self._failure(name, provider, error, attempt + 1) from cause
            wait = retry_wait(attempt, self.options.retry_wait, response_headers(error))
            attempt += 1
            observer.retrying(attempt, wait, why_failed(error))
            until = time.monotonic() + wait
            while (left := until - time.monotonic()) > 0:
                observer.check()
                time.sleep(min(POLL_SECONDS, left))

    def _account(self, answer: _Answer, observer: Observer) -> None:
        if answer.estimated and not self.usage_estimated:
            self.usage_estimated = True
            observer.text("\n[" + _("this provider sends no token counts; they are estimated") + "]\n")
        observer.usage(answer.prompt_tokens, answer.completion_tokens, answer.usd)

    def _request(
        self, name: str, provider: str, messages: list[Message], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The arguments of LiteLLM's completion."""
        request: dict[str, Any] = {
            "model": name,
            "messages": [dict(message) for message in messages],
            "tools": tools,
            "stream": True,
            "timeout": self.options.request_timeout,
            "num_retries": 0,
            "max_retries": 0,
        }
        supported = self._parameters(name, provider)
        if not supported or "stream_options" in supported:
            request["stream_options"] = {"include_usage": True}
        if self.options.api_base:
            request["api_base"] = self.options.api_base
        key = self._api_key(name, provider)
        if key is not None:
            request["api_key"] = key
        if self.options.max_output_tokens is not None:
            request["max_tokens"] = self.options.max_output_tokens
        if provider in _CACHES_ON_REQUEST and "claude" in name:
            # These providers cache a prefix only where a message is marked: the system prompt, and all up to now.
            marks = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
            request["cache_control_injection_points"] = marks
        return request

    def _model(self) -> tuple[str, str]:
        """LiteLLM's name of the model, with its provider. Raises `AgentError` when there is none or it is unknown."""
        litellm = _litellm()
        name, prefix = self.options.model, self.options.provider
        if not name:
            raise agent_error(
                _("No model is named."),
                _("Name one with -m MODEL, or as model under [llm] in the configuration."),
            )
        if prefix and not name.startswith(f"{prefix}/"):
            name = f"{prefix}/{name}"
        try:
            provider = litellm.get_llm_provider(name)[1]
        except litellm.exceptions.BadRequestError as error:
            if self.options.api_base and not prefix:
                return f"openai/{name}", "openai"
            known = [str(getattr(item, "value", item)) for item in litellm.provider_list]
            near = difflib.get_close_matches(prefix or name.split("/")[0], known, 3) or [
                "openai",
                "anthropic",
            ]
            raise agent_error(
                _("No known provider for the model {model}.").format(model=name),
                _("Name the provider with -p: {near}, …; or give the endpoint with --api-base.").format(
                    near=", ".join(near)
                ),
            ) from error
        return name, str(provider)

    def _parameters(self, name: str, provider: str) -> Sequence[str]:
        """The parameters that LiteLLM can translate for this model; empty when it cannot tell."""
        model = name.removeprefix(f"{provider}/")
        return _litellm().get_supported_openai_params(model=model, custom_llm_provider=provider) or ()

    def _missing_keys(self, name: str) -> list[str]:
        """The variables of which the provider wants one and none is set.

        What is not a plain key is left out: it may come from a profile or a machine role that the environment does
        not show.
        """
        report = _litellm().validate_environment(name, api_base=self.options.api_base or None)
        return [v for v in report["missing_keys"] if v.endswith(("_API_KEY", "_TOKEN"))]

    def _api_key(self, name: str, provider: str) -> str | None:
        """A stand-in where a local endpoint needs no key; None leaves it to LiteLLM, which reads the environment."""
        compatible = provider == "openai" or provider in _litellm().openai_compatible_providers
        return "none" if self.options.api_base and compatible and self._missing_keys(name) else None

    def _failure(self, name: str, provider: str, error: BaseException, attempts: int) -> AgentError:
        return failure(
            error,
            name.removeprefix(f"{provider}/"),
            provider,
            variables=self._missing_keys(name) or [f"{provider.upper()}_API_KEY"],
            known_models=_litellm().models_by_provider.get(provider, ()),
            attempts=attempts,
        )


@contextlib.contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop on a thread of its own, where a request can be abandoned at any point.

    At the end nothing of it is left: requests are cancelled, and their connections closed.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="llm-requests", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        closing = asyncio.run_coroutine_threadsafe(_close(), loop)
        concurrent.futures.wait([closing], CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)
        if not thread.is_alive():
            loop.close()


async def _close() -> None:
    litellm = _litellm()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await litellm.close_litellm_async_clients()
    litellm.in_memory_llm_clients_cache.flush_cache()
    await asyncio.get_running_loop().shutdown_asyncgens()


def _watch(
    loop: asyncio.AbstractEventLoop, request: Mapping[str, Any], observer: Observer
) -> _Answer | BaseException:
    """Wait for the answer on behalf of ``observer``; a failed request is returned, not raised."""
    pieces: deque[str] = deque()
    future = asyncio.run_coroutine_threadsafe(_listen(request, pieces), loop)
    told = float("-inf")
    try:
        while True:
            over = bool(concurrent.futures.wait([future], POLL_SECONDS).done)
            observer.check()
            now = time.monotonic()
            if pieces and (over or now - told >= TEXT_SECONDS):
                observer.text("".join(pieces.popleft() for _piece in range(len(pieces))))
                told = now
            if over:
                error = future.exception()
                return future.result() if error is None else error
    finally:
        future.cancel()


async def _listen(request: Mapping[str, Any], pieces: deque[str]) -> _Answer:
    """One request; its prose goes to ``pieces`` as it comes in."""
    litellm = _litellm()
    patience = request["timeout"]
    stream = await asyncio.wait_for(litellm.acompletion(**request), patience)
    chunks = []
    try:
        while True:
            try:
                chunk = await asyncio.wait_for(anext(stream), patience)
            except StopAsyncIteration:
                break
            chunks.append(chunk)
            if chunk.choices and chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
        # LiteLLM fills in token counts where the provider sent none; only its record of the raw pieces tells.
        estimated = not any(getattr(chunk, "usage", None) for chunk in stream.chunks)
    finally:
        await stream.aclose()
    if not chunks:
        raise ConnectionError(_("the stream ended without an answer"))
    response = litellm.stream_chunk_builder(chunks, messages=request["messages"])
    try:
        usd = float(litellm.completion_cost(response, model=request["model"]))
    except litellm.exceptions.ModelNotMappedError:
        usd = None
    choice = response.choices[0]
    calls = tuple(
        _Call(
            call.id or f"call_{len(request['messages'])}_{index}",
            call.function.name or "",
            call.function.arguments,
        )
        for index, call in enumerate(choice.message.tool_calls or ())
    )
    return _Answer(
        text=choice.message.content or "",
        calls=calls,
        cut=choice.finish_reason == "length",
        message=_for_history(choice.message.model_dump(exclude_none=True), calls),
        prompt_tokens=response.usage.prompt_tokens,
        completion_tokens=response.usage.completion_tokens,
        usd=usd,
        estimated=estimated,
    )


def _for_history(message: Message, calls: Sequence[_Call]) -> Message:
    """The answer as part of later requests; arguments that are no JSON object are quoted: providers parse them."""
    if calls:
        message["tool_calls"] = [
            {
                **given,
                "id": call.id,
                "function": {"name": call.name, "arguments": _parsable(call.arguments)},
            }
            for given, call in zip(message["tool_calls"], calls, strict=True)
        ]
    return message


def _parsable(arguments: str) -> str:
    try:
        parsed = json.loads(arguments)
    except ValueError:
        parsed = None
    return arguments if isinstance(parsed, dict) else json.dumps({"not_json": arguments})


def _drop_oldest_results(messages: list[Message], language: Language) -> bool:
    """Replace all but the newest `KEPT_RESULTS` tool results by a note; False when there is nothing to drop."""
    note = prompt("dropped_result", language)
    results = [message for message in messages if message["role"] == "tool"][:-KEPT_RESULTS]
    dropped = [message for message in results if message["content"] != note]
    for message in dropped:
        message["content"] = note
    return bool(dropped)
