"""A checkpoint behind HTTP, as OpenAI-compatible chat completions: for a judge on another machine, and for trying one out.

Requests that wait together are one batch of the embedded sampler. No streaming, no tools, one choice a request.
"""

import dataclasses
import json
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cascade_rl import strict_json
from cascade_rl.errors import CascadeError, RunError
from cascade_rl.model.render import RenderConfig, load_renderer
from cascade_rl.model.sources import load_tokenizer
from cascade_rl.one_checkpoint import name_of
from cascade_rl.records import Message, SamplingParams
from cascade_rl.sample.local import LocalSampler

MAX_BODY = 16 << 20  # bytes
MAX_TOGETHER = 128  # requests in one batch
MAX_ANSWER = 1 << 17  # tokens, for a model without a longest context
GATHER_S = 0.01  # how long a first request waits for others
REQUEST_TIMEOUT_S = 60.0  # for a client to send its request
ANSWER_TIMEOUT_S = 3600.0  # for the model, the requests before it included
SERVED = "only POST /v1/chat/completions and GET /v1/models are served"


class _BadRequest(Exception):
    pass


@dataclass(frozen=True)
class _Asked:
    ids: list[int]
    params: SamplingParams
    seed: int
    answer: "Future[dict[str, Any]]"


class Service:
    """The model and the thread that samples from it. `thinking`: whether answers reason first; the reasoning is told apart."""

    def __init__(self, folder: Path, *, thinking: bool = False, dtype: str = "auto") -> None:
        self.name, self.thinking = name_of(folder), thinking
        self.renderer = load_renderer(load_tokenizer(folder), RenderConfig())
        self.sampler = LocalSampler(folder, dtype=dtype, tokenizer=self.renderer.tokenizer)
        self._waiting: queue.Queue[_Asked | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="serve", daemon=True)
        self._thread.start()

    def complete(self, body: Any) -> dict[str, Any]:
        """The response to a request's JSON. Raises _BadRequest for one that cannot be answered."""
        messages, params, seed = _read(body)
        try:
            ids = self.renderer.prompt(messages, (), self.thinking)
        except CascadeError as error:
            raise _BadRequest(str(error)) from None
        if self.sampler.max_context is not None and len(ids) >= self.sampler.max_context:
            raise _BadRequest(f"the prompt has {len(ids):,} tokens; the model's context is {self.sampler.max_context:,}")
        if params.max_new_tokens > (most := self.sampler.max_context or MAX_ANSWER):
            raise _BadRequest(
                f"an answer of up to {params.max_new_tokens:,} tokens is asked for; at most {most:,} can be, and prompt and answer"
                " together end at the model's context; set max_tokens to fewer"
            )
        answer: Future[dict[str, Any]] = Future()
        self._waiting.put(_Asked(ids, dataclasses.replace(params, stop_ids=self.renderer.stop_ids), seed, answer))
        return answer.result(timeout=ANSWER_TIMEOUT_S)

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            asked = [first]
            while len(asked) < MAX_TOGETHER:
                try:
                    more = self._waiting.get(timeout=GATHER_S)
                except queue.Empty:
                    break
                if more is None:
                    self._waiting.put(None)
                    break
                asked.append(more)
            try:
                self._answer(asked)
            except Exception as error:  # the boundary: one batch that fails must not end the service
                for each in asked:
                    if not each.answer.done():
                        each.answer.set_exception(error)

    def _answer(self, asked: list[_Asked]) -> None:
        turns = self.sampler.sample([a.ids for a in asked], 1, [a.params for a in asked], [a.seed for a in asked])
        for each, (turn,) in zip(asked, turns, strict=True):
            message = self.renderer.parse(turn.answer_ids, (), self.thinking).message
            told: dict[str, Any] = {"role": "assistant", "content": message.content}
            if message.thinking:
                told["reasoning_content"] = message.thinking
            used = {"prompt_tokens": len(each.ids), "completion_tokens": len(turn.answer_ids)}
            used["total_tokens"] = sum(used.values())
            choice = {"index": 0, "message": told, "finish_reason": turn.finish}
            each.answer.set_result({"object": "chat.completion", "model": self.name, "choices": [choice], "usage": used})


def _read(body: Any) -> tuple[list[Message], SamplingParams, int]:
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise _BadRequest('expected {"messages": [{"role", "content"}, ...]}')
    for key in ("stream", "tools", "stop"):
        if body.get(key):
            raise _BadRequest(f'"{key}" is not served; leave it out')
    if _whole(body, "n", 1) != 1:
        raise _BadRequest('"n" must be 1')
    messages = []
    for told in body["messages"]:
        role, content = (told.get("role"), told.get("content")) if isinstance(told, dict) else (None, None)
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise _BadRequest("a message needs a role (system, user or assistant) and its content as a text")
        if (half := next((c for c in content if "\ud800" <= c <= "\udfff"), None)) is not None:
            raise _BadRequest(f"a message holds \\u{ord(half):04x}, half of a surrogate pair; send both halves, or leave it out")
        messages.append(Message(role, content))
    try:
        params = SamplingParams(
            temperature=_number(body, "temperature", 1.0), top_p=_number(body, "top_p", 1.0),
            max_new_tokens=_whole(body, "max_completion_tokens", _whole(body, "max_tokens", 512)),
        )  # fmt: skip
    except ValueError as error:
        raise _BadRequest(str(error)) from None
    return messages, params, _whole(body, "seed", 0)


def _number(body: dict[str, Any], key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise _BadRequest(f'"{key}" is {str(value)[:40]}; expected a number of at most 12 digits')
    return value


def _whole(body: dict[str, Any], key: str, default: int) -> int:
    value = _number(body, key, default)
    if value != int(value):
        raise _BadRequest(f'"{key}" is {value}; expected a whole number')
    return int(value)


class _Handler(BaseHTTPRequestHandler):
    server: Any
    timeout = REQUEST_TIMEOUT_S
    default_request_version = "HTTP/1.0"  # an answer to what is no HTTP has a status too

    def do_POST(self) -> None:
        if self.path.rstrip("/") != "/v1/chat/completions":
            return self._send(404, _error(SERVED))
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return self._send(400, _error(f'Content-Length is "{length[:40]}"; expected how many bytes the request has'))
        if len(length) > len(str(MAX_BODY)) or int(length) > MAX_BODY:
            return self._send(413, _error(f"Content-Length is {length[:40]}; a request may have at most {MAX_BODY:,} bytes"))
        try:
            body = strict_json.loads(self.rfile.read(int(length)).decode("utf-8"))
        except UnicodeDecodeError:
            return self._send(400, _error("the request is no text in UTF-8"))
        except strict_json.JsonFault as fault:
            return self._send(400, _error(f"the request: {fault}"))
        try:
            self._send(200, self.server.service.complete(body))
        except _BadRequest as error:
            self._send(400, _error(str(error)))
        except Exception as error:  # the boundary: told to the client, the service goes on
            self._send(500, _error(f"{type(error).__name__}: {error}"))

    def do_GET(self) -> None:
        if self.path.rstrip("/") != "/v1/models":
            return self._send(404, _error(SERVED))
        self._send(200, {"object": "list", "data": [{"id": self.server.service.name, "object": "model"}]})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the server itself refuses, a line that is no HTTP or another method, in JSON as every other error."""
        self._send(code, _error(f"{(message or HTTPStatus(code).phrase)[:200]}; {SERVED}"))

    def _send(self, status: int, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


class Server(ThreadingHTTPServer):
    """`Server(service, "127.0.0.1", 0)` listens on a free port; `url` is what a recipe names."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, service: Service, host: str, port: int) -> None:
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise RunError(f"serve: cannot listen on {host}, port {port}: {error.strerror}; choose another --port") from None
        self.service = service
        self.url = f"http://{host}:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is nothing to tell of."""


def serve(folder: Path, host: str, port: int, *, thinking: bool) -> None:
    """Serves until Ctrl-C."""
    service = Service(folder, thinking=thinking)
    with Server(service, host, port) as server:
        print(f"{service.name}: {server.url}  (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
    service.close()
