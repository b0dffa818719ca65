"""The fork server: waits inside the outer sandbox, and forks a supervisor for each run, which forks the run itself.

    server (knows nothing of any run)  ->  supervisor (outside the run's namespaces: limits, capture, the kill)  ->  the run

The server never reads a request: a run is forked from the process that did, so nothing of one run is in the memory of another. The
run is process 1 of a fresh PID namespace; when it ends, for whatever reason, the kernel ends everything it started.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import time
from typing import Any

from cascade_rl.sandbox.inside import job, kernel, wire

TICK_S = 0.1  # how often memory is looked at
_PAGE_READ = 1 << 16


def main(isolated: bool) -> None:
    """Serves the socket that is standard input until it closes. isolated False: no namespaces (the explicit, unsafe choice)."""
    sock = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    job.warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of what is already here
    wire.send(sock, wire.READY)
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    while True:
        waiting.poll()
        if not sock.recv(1, socket.MSG_PEEK):
            return
        supervisor = os.fork()
        if supervisor == 0:
            os._exit(_supervise(sock, isolated))
        _, status = os.waitpid(supervisor, 0)
        if status != 0:
            wire.send(sock, wire.FAILED, b"the run's supervisor was killed")


def _supervise(sock: socket.socket, isolated: bool) -> int:
    """One request, one reply; 0 when a reply was sent."""
    try:
        kind, head = wire.receive(sock)
        if kind == wire.STOP:  # it came too late for the run that it meant
            return 0
        request = json.loads(head)
        stdin = wire.receive(sock)[1]
        reply = Run(sock, request, stdin, isolated).finish()
        wire.send(sock, wire.DONE, json.dumps(reply.head).encode())
        wire.send(sock, wire.BLOB, bytes(reply.stdout))
        wire.send(sock, wire.BLOB, bytes(reply.stderr))
    except wire.Closed:
        return 0  # nobody is left to hear of it
    except Exception as error:
        wire.send(sock, wire.FAILED, f"{type(error).__name__}: {error}".encode(errors="replace"))
    return 0


class Run:
    """One run from fork to verdict. After `finish`: head (how it ended), stdout, stderr."""

    def __init__(self, sock: socket.socket, request: dict[str, Any], stdin: bytes, isolated: bool) -> None:
        self.sock = sock
        self.isolated = isolated
        self.limits = request["limits"]
        self.stdout, self.stderr, self.head = bytearray(), bytearray(), {}
        self.num_captured = 0
        self.started = False
        self.ended = ""  # why we killed it
        source = os.memfd_create("stdin")
        os.write(source, stdin) if len(stdin) < _PAGE_READ else _write_all(source, stdin)
        os.lseek(source, 0, os.SEEK_SET)
        pipes = [os.pipe() for _ in range(3)]
        self.pipes = {read: sink for (read, _), sink in zip(pipes, (self._out, self._err, self._result), strict=True)}
        if isolated:
            kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWPID | kernel.NEWNET | kernel.NEWUTS)
        self.begin = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            job.run(request, [source, *(write for _, write in pipes)], isolated)
        os.close(source)
        for read, write in pipes:
            os.close(write)
            os.set_blocking(read, False)
        self.pidfd = os.pidfd_open(self.pid)

    def finish(self) -> "Run":
        self._watch()
        _, status, used = os.wait4(self.pid, 0)  # process 1 is reaped last: all that it started has ended by now
        if not self.isolated:
            _kill_group(self.pid)
        for read in list(self.pipes):
            self._drain(read)
        if not self.started:
            raise RuntimeError(f"the run was not set up: {bytes(self.stderr[-2000:]).decode(errors='replace').strip()}")
        cpu_s = used.ru_utime + used.ru_stime
        code = os.waitstatus_to_exitcode(status)
        if not self.ended and code == -signal.SIGKILL and cpu_s >= self.limits["cpu_s"] / 2:
            self.ended = "time"  # the kernel's kill; its own count of processor time is coarse
        self.head = {
            "ended": self.ended or "exit",
            "exit_code": code,
            "wall_s": time.monotonic() - self.begin,
            "cpu_s": cpu_s,
            "peak_bytes": used.ru_maxrss * 1024,
        }
        return self

    def _watch(self) -> None:
        """Until process 1 has ended, or was killed for breaking a limit. The end of a pipe says nothing: a grandchild may hold it."""
        poll = select.poll()
        for descriptor in (*self.pipes, self.pidfd, self.sock.fileno()):
            poll.register(descriptor, select.POLLIN)
        next_look = self.begin + TICK_S
        while not self.ended:
            now, deadline = time.monotonic(), self.begin + self.limits["wall_s"]
            if now >= deadline:
                return self._kill("time")
            if now >= next_look and self.isolated:
                next_look = now + TICK_S
                if _memory_of_others() > self.limits["memory_bytes"]:
                    return self._kill("memory")
            for descriptor, _ in poll.poll(1000 * max(0.0, min(deadline, next_look) - now)):
                if descriptor == self.pidfd:
                    return None
                if descriptor == self.sock.fileno():
                    self._kill("stopped")  # whether told to, or because nobody is left to hear the result
                    wire.receive(self.sock)
                elif descriptor in self.pipes and not self._drain(descriptor):
                    poll.unregister(descriptor)
        return None

    def _drain(self, read: int) -> bool:
        """Takes what a pipe holds; False at its end."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(read, _PAGE_READ):
                self.pipes[read](data)
                if self.ended == "output":
                    break
            else:
                return False
        return True

    def _out(self, data: bytes) -> None:
        self.stdout += self._capped(data)

    def _err(self, data: bytes) -> None:
        self.stderr += self._capped(data)

    def _result(self, data: bytes) -> None:
        if not self.started:  # the first byte is ours: set up, the program is next
            self.started, data = True, data[1:]
            self.begin = time.monotonic()
        if data := self._capped(data):
            wire.send(self.sock, wire.RESULT, data)

    def _capped(self, data: bytes) -> bytes:
        room = max(0, self.limits["output_bytes"] - self.num_captured)
        self.num_captured += len(data)
        if len(data) > room:
            self._kill("output")
        return data[:room]

    def _kill(self, why: str) -> None:
        self.ended = self.ended or why
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        if not self.isolated:
            _kill_group(self.pid)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _memory_of_others() -> int:
    """Bytes that the processes of the run hold of their own; /proc shows this sandbox alone, and the server and we are small."""
    ours = {os.getpid(), os.getppid()}
    total = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in ours:
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/status", encoding="ascii", errors="replace") as file:
            total += sum(1024 * int(line.split()[1]) for line in file if line.startswith(("RssAnon:", "RssShmem:")))
    return total
