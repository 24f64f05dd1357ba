"""A FAKE model provider on loopback: the OpenAI chat-completions wire format, with SSE and tool calls.

    python tests/doubles/model_server.py scenario.json --port-file PORT [--record REQUESTS.jsonl] [--verbose]

or, in a test, ``with ModelServer(scenario) as server: ... server.base_url``. There is no model behind it: it
answers POST …/chat/completions from a scenario, GET …/models, and 404 to all else. It prints nothing unless asked.

Scenario (JSON): a list of rounds, or ``{"model": NAME, "rounds": [...]}``. A round is a list of answers.
An answer::

    {"text": "prose",
     "calls": [{"name": "edit_source_file", "arguments": {...}}, ...],
     "finish": "stop",          the finish reason; otherwise "tool_calls" with calls, "stop" without
     "cut": true,               the length limit: the last call (or the text) ends halfway, finish "length"
     "split": 7,                the arguments of each call come in that many pieces (default 2)
     "status": 429,             an HTTP error instead of an answer, with
     "headers": {"retry-after": "1"}, "error": {"message": …, "code": …}
     "drop": true,              the connection breaks off halfway through the answer
     "eof": true,               the stream ends properly halfway, without a finish reason
     "stall": 2.0,              seconds of silence before the answer
     "stall_midway": 2.0,       seconds of silence halfway
     "no_usage": true,          no token counts, even when asked for
     "expect": "substring",     or a list: must be in the news of this request
     "expect_not": "substring"} or a list: must not be in it

The news of a request is the text of its messages after the last assistant message: what the model had not been
told before. An unmet ``expect`` is kept in ``failures`` and answered with HTTP 400, which a client does not retry.

``arguments`` is an object, or a string sent as it is (for broken JSON). Anywhere in an object
``{"$file": "kernel.cu"}`` stands for the text of a file beside the scenario.

A request without any assistant or tool message opens the next round, even when answers of the round before are
left; the same request sent again after an answer that did not arrive whole (status, drop, stall) stays in its round.
Past the end of a round, or of the scenario, the answer is the text "nothing more to try".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

EXHAUSTED: Mapping[str, Any] = {"text": "nothing more to try"}
ANSWER_KEYS = frozenset(
    {"text", "calls", "finish", "cut", "split", "no_usage", "expect", "expect_not"}
    | {"status", "headers", "error", "drop", "eof", "stall", "stall_midway"}
)
Json = dict[str, Any]


class ModelServer:
    """The fake on a free loopback port; a context manager.

    ``scenario`` is the parsed scenario or the path of its file; ``base`` is the folder of its ``$file``, ``record``
    the file that every request body is appended to. Raises `ValueError` for a scenario it cannot play.
    """

    def __init__(
        self,
        scenario: Sequence[Any] | Mapping[str, Any] | Path,
        *,
        base: Path | None = None,
        record: Path | None = None,
        verbose: bool = False,
    ) -> None:
        if isinstance(scenario, Path):
            base = scenario.parent
            parsed: Any = json.loads(scenario.read_text(encoding="utf-8"))
        else:
            parsed = scenario
        if not isinstance(parsed, Mapping):
            parsed = {"rounds": parsed}
        self.model: str = parsed.get("model", "fake-model")
        self.rounds: list[list[Json]] = [
            [_checked(answer, base) for answer in one] for one in parsed["rounds"]
        ]
        self.requests: list[Json] = []
        self.on_request: Callable[[int], None] = lambda _number: None
        """Called with the number of each request, from 0, before it is answered."""
        """Every request body, in order."""
        self.failures: list[str] = []
        """Every ``expect`` and ``expect_not`` that did not hold."""
        self.verbose = verbose
        self._record = record
        self._lock = threading.Lock()
        self._round = -1
        self._step = 0
        self._whole: set[int] = set()
        self.closing = threading.Event()
        self.http = _Http(("127.0.0.1", 0), _Handler)
        self.http.fake = self
        self._thread = threading.Thread(
            target=self.http.serve_forever, args=(0.02,), name="fake-model", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self.http.server_address[1])

    @property
    def base_url(self) -> str:
        """What a client takes as its API base."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()
        self._thread.join(5)

    def told(self) -> list[str]:
        """For each request, the text of the messages that the model had not been told before."""
        return [_news(body) for body in self.requests]

    def next_answer(self, body: Json) -> tuple[int, Json]:
        """Record a request and choose what to answer; the number of the request goes with it."""
        with self._lock:
            before = self.requests[-1] if self.requests else None
            self.requests.append(body)
            number = len(self.requests)
            if self._record is not None:
                with self._record.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(body, ensure_ascii=False) + "\n")
            fresh = not any(message["role"] in {"assistant", "tool"} for message in body["messages"])
            again = (
                before is not None
                and before["messages"] == body["messages"]
                and number - 1 not in self._whole
            )
            if self._round < 0 or (fresh and not again):
                self._round, self._step = self._round + 1, 0
            answers = self.rounds[self._round] if self._round < len(self.rounds) else []
            answer = answers[self._step] if self._step < len(answers) else EXHAUSTED
            where = f"round {self._round}, answer {self._step}"
            self._step += 1
            unmet = _unmet(answer, _news(body))
            if unmet:
                self.failures += [f"{where}: {problem}" for problem in unmet]
                answer = {"status": 400, "error": {"message": f"scenario, {where}: {'; '.join(unmet)}"}}
            return number, dict(answer)

    def sent_whole(self, number: int) -> None:
        """The answer to that request goes out to its end."""
        with self._lock:
            self._whole.add(number)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    fake: ModelServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of many scenarios; anything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        if self.server.fake.verbose:
            super().log_message(format, *args)

    def do_GET(self) -> None:
        if self.path.rstrip("/").endswith("/models"):
            model = {"id": self.server.fake.model, "object": "model", "owned_by": "fake"}
            self._json(200, {"object": "list", "data": [model]})
        else:
            self._error(404, {"message": f"no such path: {self.path}"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))))
        if not self.path.rstrip("/").endswith("/chat/completions"):
            self._error(404, {"message": f"no such path: {self.path}"})
            return
        if not body.get("stream"):
            self._error(400, {"message": "this fake only streams"})
            return
        fake = self.server.fake
        number, answer = fake.next_answer(body)
        fake.on_request(number - 1)
        fake.closing.wait(answer.get("stall", 0))
        if "status" in answer:
            error = {"message": "made up by the fake", **answer.get("error", {})}
            self._error(answer["status"], error, answer.get("headers", {}))
            return
        self._stream(body, answer, number)

    def _stream(self, body: Json, answer: Json, request: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chunks = list(_chunks(answer, body, self.server.fake.model))
        half = len(chunks) // 2
        for number, chunk in enumerate(chunks):
            if number == half:
                if answer.get("drop"):
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if answer.get("eof"):
                    break
                self.server.fake.closing.wait(answer.get("stall_midway", 0))
            self._event(json.dumps(chunk))
        else:
            self.server.fake.sent_whole(request)
            self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def _error(self, status: int, error: Json, headers: Mapping[str, str] | None = None) -> None:
        self._json(status, {"error": {"type": "fake_error", "code": None, **error}}, headers)

    def _json(self, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)


def _chunks(answer: Json, body: Json, model: str) -> Iterator[Json]:
    """The answer as the stream's JSON chunks."""
    frame = {"id": "fake", "object": "chat.completion.chunk", "created": 0, "model": body.get("model", model)}
    text: str = answer.get("text", "")
    calls: list[Json] = answer.get("calls", [])
    if answer.get("cut") and not calls:
        text = text[: len(text) // 2]

    def delta(content: Json, finish: str | None = None) -> Json:
        return {**frame, "choices": [{"index": 0, "delta": content, "finish_reason": finish}]}

    yield delta({"role": "assistant", "content": ""})
    for piece in _pieces(text, max(1, len(text) // 16)):
        yield delta({"content": piece})
    written = len(text)
    for index, call in enumerate(calls):
        arguments = call["arguments"]
        if answer.get("cut") and index == len(calls) - 1:
            arguments = arguments[: len(arguments) // 2]
        written += len(arguments)
        identity = {"id": f"call_{len(body['messages'])}_{index}", "type": "function"}
        head = {"index": index, **identity, "function": {"name": call["name"], "arguments": ""}}
        yield delta({"tool_calls": [head]})
        for piece in _pieces(arguments, answer.get("split", 2)):
            yield delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    usual = "length" if answer.get("cut") else "tool_calls" if calls else "stop"
    yield delta({}, answer.get("finish", usual))
    if body.get("stream_options", {}).get("include_usage") and not answer.get("no_usage"):
        prompt = len(json.dumps(body["messages"])) // 4
        counts = {"prompt_tokens": prompt, "completion_tokens": written // 4}
        yield {**frame, "choices": [], "usage": {**counts, "total_tokens": prompt + written // 4}}


def _pieces(text: str, count: int) -> Iterator[str]:
    size = max(1, -(-len(text) // count))
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _news(body: Json) -> str:
    """The text of the messages after the last assistant message."""
    messages = body["messages"]
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return "\n".join(_text(message.get("content")) for message in messages[last + 1 :])


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""


def _unmet(answer: Mapping[str, Any], news: str) -> list[str]:
    wanted = [f"missing {text!r}" for text in _list(answer.get("expect")) if text not in news]
    return wanted + [f"unwanted {text!r}" for text in _list(answer.get("expect_not")) if text in news]


def _list(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _checked(answer: Mapping[str, Any], base: Path | None) -> Json:
    """The answer with files inserted and arguments as JSON text."""
    unknown = set(answer) - ANSWER_KEYS
    if unknown:
        raise ValueError(f"unknown key in an answer: {', '.join(sorted(unknown))}")
    calls = []
    for call in answer.get("calls", []):
        arguments = call.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(_with_files(arguments, base))
        calls.append({"name": call["name"], "arguments": text})
    return {**answer, "calls": calls} if calls else dict(answer)


def _with_files(value: Any, base: Path | None) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$file"}:
            if base is None:
                raise ValueError("$file needs a scenario read from a file, or base=")
            return (base / value["$file"]).read_text(encoding="utf-8")
        return {key: _with_files(part, base) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_files(part, base) for part in value]
    return value


def main() -> int:
    """Serve until SIGTERM or SIGINT; the exit code is 1 when an expectation failed."""
    parser = argparse.ArgumentParser(description="A fake model provider on loopback.")
    parser.add_argument("scenario", type=Path)
    parser.add_argument(
        "--port-file", type=Path, required=True, help="where to write the port, once it is open"
    )
    parser.add_argument("--record", type=Path, help="append every request body to this file, one JSON a line")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ModelServer(options.scenario, record=options.record, verbose=options.verbose) as server:
        written = options.port_file.with_name(options.port_file.name + ".part")
        written.write_text(f"{server.port}\n", encoding="utf-8")
        written.replace(options.port_file)
        with contextlib.suppress(KeyboardInterrupt):
            stop.wait()
    for failure in server.failures:
        print(failure, file=sys.stderr)
    return 1 if server.failures else 0


if __name__ == "__main__":
    sys.exit(main())
