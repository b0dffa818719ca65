"""A real HTTP server on loopback that speaks chat completions, and misbehaves as a test asks."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GOOD = "Score 1: 4\nScore 2: 2\nRanking: 2"
LONGEST_HANG_S = 3.0  # no test waits for it; threads of the server end by themselves


def completion(content: Any = GOOD, finish: str = "stop") -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish}]}).encode()


class Handler(BaseHTTPRequestHandler):
    """How the next requests are answered is the server's `behave(number)`: a name below, or an own status, headers and body."""

    server: Any

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append((self.path, dict(self.headers), json.loads(self.rfile.read(length))))
        how = self.server.behave(number)
        told = getattr(self, how)() if isinstance(how, str) else how
        if told is not None:
            status, headers, body = told
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def good(self) -> Any:
        return 200, {}, completion()

    def error(self) -> Any:
        return 500, {}, b"out of memory"

    def hang(self) -> None:
        self.server.released.wait(LONGEST_HANG_S)
        self.close_connection = True

    def trickle(self) -> None:
        """A byte now and then: no single read times out."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        end = time.monotonic() + LONGEST_HANG_S
        while time.monotonic() < end and not self.server.released.wait(0.02):
            self.wfile.write(b" ")
            self.wfile.flush()

    def trickle_headers(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        end = time.monotonic() + LONGEST_HANG_S
        while time.monotonic() < end and not self.server.released.wait(0.02):
            self.wfile.write(b"X-More: yes\r\n")
            self.wfile.flush()

    def close_early(self) -> None:
        self.close_connection = True
        self.connection.close()

    def half_body(self) -> None:
        body = completion()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[: len(body) // 2])
        self.close_connection = True

    def half_json(self) -> Any:
        return 200, {}, completion()[:30]

    def deep_json(self) -> Any:
        return 200, {}, b"[" * 200_000

    def other_schema(self) -> Any:
        return 200, {}, b'{"text": "Score 1: 4"}'

    def no_text(self) -> Any:
        return 200, {}, completion(None)

    def cut(self) -> Any:
        return 200, {}, completion(finish="length")

    def busy(self) -> Any:
        return 429, {"Retry-After": "1"}, b"slow down"

    def busy_for_long(self) -> Any:
        return 429, {"Retry-After": "600"}, b"slow down"

    def refused(self) -> Any:
        return 401, {}, b"wrong key: " + self.headers.get("Authorization", "").encode()

    def redirect(self) -> Any:
        return 307, {"Location": "http://127.0.0.1:9/v1/chat/completions"}, b""

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is what is being tested."""


@contextmanager
def serving(behave: Callable[[int], Any]) -> Iterator[Any]:
    """The server; `url` is what a recipe would name, `requests` what it was asked."""
    server: Any = Server(("127.0.0.1", 0), Handler)
    server.behave, server.requests, server.lock, server.released = behave, [], threading.Lock(), threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
