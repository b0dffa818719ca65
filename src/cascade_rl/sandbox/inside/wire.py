"""Frames on a stream socket: one byte that says what it is, four bytes of length, the payload."""

import os
import socket
import struct

HEAD = struct.Struct(">cI")
MAX_FRAME_BYTES = 256 << 20

READY, REQUEST, BLOB, PIPES, DONE, FAILED, STOP = b"+", b"Q", b"B", b"P", b"D", b"F", b"S"


class Closed(ConnectionError):
    """The other end is gone."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


def send(sock: socket.socket, kind: bytes, payload: bytes = b"") -> None:
    sock.sendall(frame(kind, payload))


def receive(sock: socket.socket) -> tuple[bytes, bytes]:
    """The next frame as (kind, payload). Raises Closed, or TimeoutError where the socket has a time-out."""
    return _rest(sock, _exactly(sock, HEAD.size))


def send_pipes(sock: socket.socket, descriptors: list[int]) -> None:
    """A frame PIPES; the other end gets descriptors of its own."""
    socket.send_fds(sock, [frame(PIPES)], descriptors)


def receive_pipes(sock: socket.socket, num: int) -> tuple[bytes, bytes, list[int]]:
    """The next frame, and the descriptors that came with it: `num` of a frame PIPES, none of another. Raises like `receive`."""
    head, descriptors, _, _ = socket.recv_fds(sock, HEAD.size, num, socket.MSG_CMSG_CLOEXEC)
    try:
        kind, payload = _rest(sock, head + _exactly(sock, HEAD.size - len(head)))  # at its end, the rest never comes
        if len(descriptors) != (num if kind == PIPES else 0):
            raise Closed(f"{len(descriptors)} descriptors came, not {num}")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return kind, payload, descriptors


def _rest(sock: socket.socket, head: bytes) -> tuple[bytes, bytes]:
    kind, size = HEAD.unpack(head)
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
