"""Frames on a stream socket: one byte that says what it is, four bytes of length, the payload."""

import socket
import struct

HEAD = struct.Struct(">cI")
MAX_FRAME_BYTES = 256 << 20

READY, REQUEST, BLOB, RESULT, DONE, FAILED, STOP = b"+", b"Q", b"B", b"R", b"D", b"F", b"S"


class Closed(ConnectionError):
    """The other end is gone."""


def send(sock: socket.socket, kind: bytes, payload: bytes = b"") -> None:
    sock.sendall(HEAD.pack(kind, len(payload)) + payload)


def receive(sock: socket.socket) -> tuple[bytes, bytes]:
    """The next frame as (kind, payload). Raises Closed, or TimeoutError where the socket has a time-out."""
    kind, size = HEAD.unpack(_exactly(sock, HEAD.size))
    if size > MAX_FRAME_BYTES:
        raise Closed(f"a frame of {size:,} bytes")
    return kind, _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise Closed("the other end closed")
        data += part
    return bytes(data)
