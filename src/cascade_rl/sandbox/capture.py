"""What a run writes, read by the host as it comes: up to a limit, past which the run is stopped."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

from cascade_rl.sandbox.inside import wire

Until = Callable[[int, bytes], bool]  # (number of a line of results, the line) -> whether enough was seen
_READ_BYTES = 1 << 16  # what a pipe holds


class Capture:
    """The pipes of one run. After `finish`: stdout, stderr, lines (of results), over (whether it wrote more than it may).

    pipes: reading ends of stdout, stderr and results, closed by `close`. sock: where the server tells of the end and hears STOP.
    """

    def __init__(self, sock: socket.socket, pipes: Sequence[int], output_bytes: int, until: Until | None) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self.lines: list[bytes] = []
        self.over = False
        self._sock = sock
        self._end = sock.fileno()  # as it is now: another thread may close the socket, and the number then be another's
        self._room = output_bytes
        self._until = until
        self._stopped = False
        self._pending = b""
        self._sinks = dict(zip(pipes, (self.stdout.extend, self.stderr.extend, self._results), strict=True))
        self._poll = select.poll()
        for pipe in pipes:
            self._poll.register(pipe, select.POLLIN)

    def finish(self, deadline: float) -> tuple[bytes, bytes]:
        """The frame that the server sends at the run's end; all that the run wrote is taken by then. Raises TimeoutError, OSError."""
        self._poll.register(self._end, select.POLLIN)
        told = None
        while told is None:
            if not (ready := self._poll.poll(1000 * max(0.0, deadline - time.monotonic()))):
                raise TimeoutError
            for descriptor, _ in ready:
                if descriptor == self._end:
                    told = wire.receive(self._sock)
                else:
                    self._take(descriptor)
        self._poll.unregister(self._end)
        while not self.over and (ready := self._poll.poll(0)):  # whoever wrote has ended: what is there is all there will be
            for descriptor, _ in ready:
                self._take(descriptor)
        return told

    def close(self) -> None:
        for pipe in self._sinks:
            os.close(pipe)

    def _take(self, pipe: int) -> None:
        if self.over:
            return
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:  # the program has read it itself
            return
        if not data:
            self._poll.unregister(pipe)
            return
        self.over = len(data) > self._room
        self._sinks[pipe](data[: self._room])
        self._room = max(0, self._room - len(data))
        if self.over:
            for each in self._sinks:
                with contextlib.suppress(KeyError):  # of one that has ended already
                    self._poll.unregister(each)
            self._stop()

    def _results(self, data: bytes) -> None:
        *whole, self._pending = (self._pending + data).split(b"\n")
        for line in whole:
            self.lines.append(line)
            if self._until is not None and not self._stopped and self._until(len(self.lines) - 1, line):
                self._stop()

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            wire.send(self._sock, wire.STOP)
