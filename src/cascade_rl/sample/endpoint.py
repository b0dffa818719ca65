"""An OpenAI-compatible endpoint as a `Chat`: chat completions over HTTP, with deadlines that hold whatever the server does.

The key goes into one header and nowhere else: not into an error, a log or another host (redirects are failures).
"""

import http.client
import json
import os
import random
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from cascade_rl.errors import RecipeError
from cascade_rl.records import Message, Reply, SamplingParams

MAX_BODY = 8 << 20  # bytes; a reply is a few kilobytes
MAY_PASS = (408, 409, 425, 429)  # and everything from 500 on: the same request may succeed later
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0
GIVE_UP_AFTER = 16  # questions in a row without any answer: the others of the call are not asked
_THINK_END = "</think>"


class _Failed(Exception):
    """A try without a reply. wait_s: what the server asks us to wait; final: that another try would fail alike."""

    def __init__(self, why: str, wait_s: float = 0.0, final: bool = False) -> None:
        super().__init__(why)
        self.wait_s, self.final = wait_s, final


@dataclass(frozen=True, kw_only=True)
class EndpointChat:
    """url: up to and with the version, such as http://localhost:8000/v1. key_env: the variable that holds the key, "" for none.

    timeout_s: for one question, all `retries` further tries and the waits between them together. concurrency: questions at once.
    """

    url: str
    model: str
    params: SamplingParams
    key_env: str = ""
    timeout_s: float = 120.0
    retries: int = 3
    concurrency: int = 8

    def __post_init__(self) -> None:
        self._key()

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> list[Reply]:
        """See `protocols.Chat`."""
        silence = _Silence()
        replies: dict[int, Reply] = {}
        places = iter(range(len(conversations)))  # each thread takes the next

        def ask() -> None:
            for place in places:
                if silence.told:
                    told = f"not asked: the last {GIVE_UP_AFTER} questions had no answer; the last: {silence.told}"
                    replies[place] = Reply("", failure=told)
                    continue
                try:
                    replies[place] = self._answer(conversations[place], seeds[place])
                except (
                    Exception
                ) as error:  # the boundary: an answer that breaks the client must not leave a place without a reply
                    replies[place] = Reply("", failure=f"{type(error).__name__}: {error}")
                silence.heard(replies[place])

        # Not of a pool: Python waits for a pool's threads at its end, and a silent server would hold up Ctrl-C.
        threads = [threading.Thread(target=ask, name="judge", daemon=True) for _ in range(min(self.concurrency, len(seeds)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [replies[place] for place in range(len(conversations))]

    def _answer(self, conversation: Sequence[Message], seed: int) -> Reply:
        body = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in conversation],
            "temperature": self.params.temperature,
            "top_p": self.params.top_p,
            "max_tokens": self.params.max_new_tokens,
            "seed": seed % (1 << 31),
        }
        payload = json.dumps(body).encode()
        until, wait, why = time.monotonic() + self.timeout_s, FIRST_WAIT_S, ""
        for attempt in range(1 + self.retries):
            try:
                return _read_reply(self._post(payload, until))
            except _Failed as failed:
                why = str(failed)
                pause = max(failed.wait_s, wait * random.uniform(0.5, 1.0))  # time only: no result depends on it
                if failed.final or attempt == self.retries or time.monotonic() + pause >= until:
                    break
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT_S)
        return Reply("", failure=self._without_key(f"{urlsplit(self.url).netloc}: {why}"))

    def _post(self, payload: bytes, until: float) -> Any:
        """One request. Raises _Failed; never takes longer than `until`, since the socket is shut then."""
        left = until - time.monotonic()
        if left <= 0:
            raise _Failed(f"no answer in {self.timeout_s:g} s")
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            connection: Any = http.client.HTTPSConnection(host, port, timeout=left, context=ssl.create_default_context())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=left)
        cut = threading.Timer(left, _shut, [connection])
        cut.daemon = True
        cut.start()
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.request("POST", f"{parts.path.rstrip('/')}/chat/completions", payload, headers)
            response = connection.getresponse()
            data = response.read(MAX_BODY + 1)
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(self._late(until) or f"no answer: {type(error).__name__}: {str(error)[:120]}") from None
        finally:
            cut.cancel()
            connection.close()
        if late := self._late(until):
            raise _Failed(late)
        return _check(response, data)

    def _late(self, until: float) -> str:
        return f"no answer in {self.timeout_s:g} s" if time.monotonic() >= until else ""

    def _key(self) -> str:
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise RecipeError(
                f"judge: environment variable {self.key_env} {'holds no valid key' if key else 'is not set'}; export it with the key of"
                f" {urlsplit(self.url).hostname}"
            )
        return key

    def _without_key(self, text: str) -> str:
        """A server may repeat the key in its complaint."""
        key = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        return text.replace(key, "***") if key else text


class _Silence:
    """Counts questions in a row that had no answer, over all threads."""

    def __init__(self) -> None:
        self._lock, self._count, self.told = threading.Lock(), 0, ""

    def heard(self, reply: Reply) -> None:
        with self._lock:
            self._count = self._count + 1 if reply.failure else 0
            if self._count >= GIVE_UP_AFTER:
                self.told = reply.failure


def _shut(connection: Any) -> None:
    import socket

    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _check(response: http.client.HTTPResponse, data: bytes) -> Any:
    """The JSON of a good response. Raises _Failed."""
    if response.status != 200:
        said = " ".join(data[:300].decode("utf-8", errors="replace").split())
        final = response.status < 500 and response.status not in MAY_PASS
        raise _Failed(f"HTTP {response.status}: {said[:200]}", _retry_after(response), final)
    if len(data) > MAX_BODY:
        raise _Failed(f"an answer of more than {MAX_BODY:,} bytes", final=True)
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and len(data) < int(length):
        raise _Failed(f"closed after {len(data)} of {length} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise _Failed(f"not JSON: {data[:80].decode('utf-8', errors='replace')!r}") from None


def _retry_after(response: http.client.HTTPResponse) -> float:
    told = response.headers.get("Retry-After", "").strip()
    return float(told) if told.isdigit() and len(told) < 6 else 0.0


def _read_reply(told: Any) -> Reply:
    """The text of a chat completion, reasoning left out. Raises _Failed for another schema."""
    try:
        choice = told["choices"][0]
        content, finish = choice["message"]["content"], choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _Failed(f"no chat completion: {json.dumps(told)[:80]}") from None
    if finish == "length":
        return Reply("", failure="no end within max_new_tokens")
    if not isinstance(content, str):
        raise _Failed(f"a chat completion whose content is {type(content).__name__}, not text")
    return Reply(content.rpartition(_THINK_END)[2])
