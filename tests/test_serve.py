"""A checkpoint behind real HTTP: the endpoint client and the embedded sampler say the same."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.errors import RunError
from cascade_rl.records import Message, SamplingParams
from cascade_rl.sample.endpoint import EndpointChat
from cascade_rl.sample.replies import LocalChat
from cascade_rl.serve import Server, Service
from tests.model.tiny import make_tiny

PARAMS = SamplingParams(temperature=1.0, max_new_tokens=200)
QUESTIONS = [(Message("user", f"go {i}"),) for i in range(5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a stage of a run leaves it."""
    return make_tiny("qwen3", tmp_path_factory.mktemp("serve") / "02-sft-4e4b3e3f" / "checkpoint", max_position_embeddings=300)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    service = Service(model, dtype="float32")
    with Server(service, "127.0.0.1", 0) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield served
        served.shutdown()
        thread.join(timeout=5)
    service.close()


def test_an_endpoint_of_ours_says_what_the_sampler_says(model: Path, server: Server) -> None:
    seeds = [3, 1, 4, 1, 5]
    local = LocalChat(model, PARAMS, thinking=False, dtype="float32").reply(QUESTIONS, seeds)
    remote = EndpointChat(url=server.url, model="tiny", params=PARAMS, timeout_s=20.0).reply(QUESTIONS, seeds)
    assert [reply.text for reply in local] == [reply.text for reply in remote]
    assert [bool(reply.failure) for reply in local] == [bool(reply.failure) for reply in remote]


def post(server: Server, body: Any, path: str = "/chat/completions") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data), timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_response_has_the_known_layout(server: Server) -> None:
    status, told = post(server, {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
    assert status == 200
    assert told["choices"][0]["message"]["role"] == "assistant"
    assert told["choices"][0]["finish_reason"] in ("stop", "length")
    assert told["usage"]["total_tokens"] == told["usage"]["prompt_tokens"] + told["usage"]["completion_tokens"]


def test_an_answer_ends_at_the_models_context(server: Server) -> None:
    """As with the sampler itself: what is asked for may be longer than the room that the prompt leaves, not longer than the context."""
    status, told = post(server, {"messages": [{"role": "user", "content": "\U0001f600 hi"}], "max_tokens": 300})
    assert status == 200
    assert told["usage"]["total_tokens"] <= 300


@pytest.mark.parametrize(
    "body, says",
    [
        (b"{", "not JSON"),
        ([], "expected"),
        ({"messages": []}, "expected"),
        ({"messages": [{"role": "user"}]}, "needs a role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "needs a role"),
        ({"messages": [{"role": "user", "content": "x"}], "stream": True}, '"stream" is not served'),
        ({"messages": [{"role": "user", "content": "x"}], "stop": ["a"]}, '"stop" is not served'),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, '"n" must be 1'),
        ({"messages": [{"role": "user", "content": "x"}], "n": True}, '"n" is True; expected a number'),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2.9}, '"max_tokens" is 2.9; expected a whole number'),
        ({"messages": [{"role": "user", "content": "x"}], "seed": 1.5}, '"seed" is 1.5; expected a whole number'),
        (b'{"messages": [], "messages": [{"role": "user", "content": "x"}]}', "a key is repeated"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "NaN is not a JSON value"),
        (b"\xff{}", "no text in UTF-8"),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}, '"temperature" is hot'),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": -1}, "must be 0"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "the model's context is 300"),
        (b"[" * 100_000, "nested too deep"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, r"a message holds \ud83d, half of a surrogate pair"),
        (
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 301},
            "up to 301 tokens is asked for; at most 300 can be",
        ),
        ({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 1e11}, "at most 300 can be"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(server: Server, body: Any, says: str) -> None:
    status, told = post(server, body)
    assert status == 400
    assert says in told["error"]["message"]


def test_a_port_in_use_is_named(server: Server) -> None:
    port = server.server_address[1]
    with pytest.raises(RunError, match=rf"cannot listen on 127\.0\.0\.1, port {port}: Address already in use; choose another"):
        Server(server.service, "127.0.0.1", int(port))


def test_other_paths_are_not_there(server: Server) -> None:
    assert post(server, {}, "/completions")[0] == 404
    with urllib.request.urlopen(server.url + "/models", timeout=20) as response:
        assert json.loads(response.read())["data"][0]["id"] == "02-sft-4e4b3e3f"


def raw(server: Server, text: bytes) -> tuple[int, Any]:
    """The status and the JSON of the answer to bytes that no client of ours would send."""
    with socket.create_connection(("127.0.0.1", int(server.server_address[1])), timeout=20) as line:
        line.sendall(text)
        head, _, body = b"".join(iter(lambda: line.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    "text, status, says",
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n{}", 400, "expected how many bytes"),
        (b"POST /v1/chat/completions HTTP/1.1\r\n\r\n{}", 400, "expected how many bytes"),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
            413,
            "at most 16,777,216 bytes",
        ),
        (b"PUT /v1/models HTTP/1.1\r\n\r\n", 501, "Unsupported method ('PUT'); only POST /v1/chat"),
        (b"what is this\r\n\r\n", 400, "Bad request"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414, "Too Long"),
    ],
    ids=["no-digit", "no-length", "nines", "put", "no-http", "long"],
)
def test_what_is_no_request_is_answered_in_json_too(server: Server, text: bytes, status: int, says: str) -> None:
    got, told = raw(server, text)
    assert got == status
    assert says in told["error"]["message"]
