"""The sandbox seen from the host: nothing survives a run, nothing gets out, and the next run is as quick."""

import ast
import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from cascade_rl.errors import SandboxError
from cascade_rl.sandbox import bubblewrap, process
from cascade_rl.sandbox.capture import Capture
from cascade_rl.sandbox.inside import kernel
from cascade_rl.sandbox.process import MB, ForkServer, Job, Limits, ProcessSandbox, SandboxFailed, SandboxPool
from tests.sandbox.host import children, needs_sandbox, processes, soon
from tests.sandbox.hostile import PIECES, program, programs

pytestmark = needs_sandbox

EXAMPLES = int(os.environ.get("CASCADE_HOSTILE_EXAMPLES", "6"))
MARKER = f"cascade-marker-{os.getpid()}"
OURS = Limits(cpu_s=20, wall_s=30.0)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def script(server: ForkServer, source: str, limits: Limits = OURS) -> str:
    return server.run(Job("program", source=source), limits).exit.stdout.decode()


def quickest_s(server: ForkServer) -> float:
    """Of a few runs of a program that does next to nothing."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        assert script(server, "print(1)") == "1\n"
        times.append(time.perf_counter() - begin)
    return min(times)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def check_nothing_is_left(server: ForkServer, port: int) -> None:
    assert soon(lambda: len(children(server.process.pid)) == 2), children(server.process.pid)  # keeper and server alone
    assert not is_open(port)
    for place in (
        "/",
        "/tmp",
        "/var/tmp",
        "/dev",
        "/dev/shm",
        "/etc",
        str(Path.home()),
        os.getcwd(),
        sys.prefix,
        sys.base_prefix,
    ):
        assert not Path(place, MARKER).exists(), f"{place} was written to"
    look = (
        "import os\nprint([os.listdir(p) for p in ('/box', '/tmp', '/dev/shm')], len([p for p in os.listdir('/proc') if p.isdigit()]),"
        " [len(open(f'/proc/sysvipc/{kind}').readlines()) - 1 for kind in ('msg', 'sem', 'shm')])"
    )
    assert script(server, look) == "[['program.py'], [], []] 1 [0, 0, 0]\n"


def check_hostile(server: ForkServer, names: list[str], n: int) -> None:
    port = free_port()
    before_s = quickest_s(server)
    result = server.run(
        Job("program", source=program(names, n, MARKER, port)),
        Limits(cpu_s=2, wall_s=0.4, memory_bytes=256 * MB, num_processes=300 if n > 100 else 32),
    )
    assert result.exit.wall_s < 5
    assert b"REACHED" not in result.exit.stdout
    assert len(result.exit.stdout) + len(result.exit.stderr) <= MB
    check_nothing_is_left(server, port)
    assert quickest_s(server) < 3 * before_s + 0.05


@pytest.mark.parametrize("name", PIECES)
def test_each_hostile_piece_leaves_nothing_behind(server: ForkServer, name: str) -> None:
    check_hostile(server, [name], 20)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(programs)
@example((["forks", "memory of many", "signals", "daemon"], 300))
def test_hostile_programs_leave_nothing_behind(server: ForkServer, made: tuple[list[str], int]) -> None:
    check_hostile(server, *made)


def test_the_walls_fall_with_the_program_not_before(server: ForkServer) -> None:
    """While a program listens and sleeps, the host cannot reach it."""
    pool, port = SandboxPool(size=1), free_port()
    listens = f"import socket, time\ns = socket.socket(); s.bind(('0.0.0.0', {port})); s.listen(); time.sleep(1)"

    async def look() -> bool:
        running = asyncio.ensure_future(pool.run(Job("program", source=listens), OURS))
        reached = False
        while not running.done():
            await asyncio.sleep(0.02)
            reached = reached or is_open(port)
        assert (await running).exit.exit_code == 0
        return reached

    try:
        assert not asyncio.run(look())
    finally:
        pool.close()


def test_programs_see_only_what_they_are_shown(server: ForkServer) -> None:
    shown = script(server, "import os\nprint(sorted(os.listdir('/')), os.getuid(), os.getpid(), sorted(os.environ))")
    folders, _, rest = shown.partition("] ")
    assert not {"home", "var", "opt", "mnt", "srv"} & set(ast.literal_eval(folders + "]"))
    assert rest.startswith("65534 1 ")
    assert "PYTEST" not in shown
    assert script(server, f"import os\nprint(os.path.exists({str(Path(__file__))!r}), os.listdir('/etc'))").startswith("False")
    assert "import" not in script(server, "import os\nprint([f for f in os.listdir('/proc/self/fd') if int(f) > 4])\n")


def test_host_uid_is_an_ordinary_one(server: ForkServer) -> None:
    for pid in children(server.process.pid):
        uids = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")).split()[1:]
        assert "0" not in uids


def test_a_run_has_namespaces_of_its_own_and_no_power(server: ForkServer) -> None:
    kinds = ("pid", "mnt", "ipc", "uts", "net")
    told = script(server, f"import os\nfor kind in {kinds}: print(os.readlink(f'/proc/self/ns/{{kind}}'))").split()
    keeper, inner = children(server.process.pid)
    for pid in (os.getpid(), keeper, inner):
        with contextlib.suppress(PermissionError):  # not ours to look into
            assert not {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in kinds} & set(told)
    status = dict(
        line.split(":\t") for line in script(server, "print(open('/proc/self/status').read())").split("\n") if ":\t" in line
    )
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2" if kernel.can_filter() else "0")


def test_the_limit_on_processes_counts_what_the_program_starts(server: ForkServer) -> None:
    forks = (
        "import os, time\nfor made in range(100):\n    try:\n        if os.fork() == 0: time.sleep(20); os._exit(0)\n"
        "    except OSError: break\nprint(made)"
    )
    assert [int(script(server, forks, Limits(cpu_s=5, num_processes=num))) for num in (1, 7, 32)] == [1, 7, 32]


def test_the_server_holds_nothing_of_a_run(server: ForkServer) -> None:
    """What it was asked to run, what that read and what that wrote never were in the memory that the next run is forked from."""
    needle = "need" + "-le-" * 3
    source = f"import sys\nmine = '{needle}'\nprint(input(), mine)\nprint(mine, file=sys.stderr)"
    result = server.run(Job("program", source=source, stdin=needle.encode()), OURS)
    assert result.exit.stdout.decode() == f"{needle} {needle}\n"
    for pid in children(server.process.pid):
        try:
            maps, memory = Path(f"/proc/{pid}/maps").read_text(), open(f"/proc/{pid}/mem", "rb", buffering=0)  # noqa: SIM115
        except PermissionError:
            pytest.skip("its memory is not ours to look into")
        with memory:
            for span, kind in (line.split()[:2] for line in maps.splitlines()):
                begin, end = (int(place, 16) for place in span.split("-"))
                if kind.startswith("rw"):
                    memory.seek(begin)
                    assert needle.encode() not in memory.read(end - begin)


def test_one_run_knows_nothing_of_another(server: ForkServer) -> None:
    secret = "tell-" + "tale" * 3
    script(server, f"secret = '{secret}'")
    look = "import gc\nhalf = 'tell-' + 't'\nprint(any(half + 'aletale' in s for s in map(repr, gc.get_objects()) if 'map(repr' not in s))"
    assert script(server, look) == "False\n"
    scan = (
        "found = 0\nneedle = b'-'.join([b'tell', b'tale' * 3])\n"
        "for line in open('/proc/self/maps'):\n    span, kind = line.split()[:2]\n    if 'rw' not in kind: continue\n"
        "    a, b = (int(x, 16) for x in span.split('-'))\n    mem = open('/proc/self/mem', 'rb'); mem.seek(a)\n"
        "    try: found += mem.read(b - a).count(needle)\n    except OSError: pass\nprint(found)"
    )
    assert int(script(server, scan)) <= 8  # its own copies while it searches, not the other program's text


def test_the_host_waits_for_no_single_pipe(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program can open its own pipes and take back what the host was just told of."""
    waits: list[bool] = []

    class Looks(Capture):
        def _take(self, pipe: int) -> None:
            waits.append(os.get_blocking(pipe))
            super()._take(pipe)
            with contextlib.suppress(KeyError):  # it was at its end already
                super()._take(pipe)  # nothing is there

    monkeypatch.setattr(process, "Capture", Looks)
    for name in ("harness", "own pipes"):
        assert server.run(Job("program", source=program([name], 20, MARKER, 1)), OURS).exit.exit_code == 0
    assert waits
    assert not any(waits)


def test_many_runs_leak_nothing(server: ForkServer) -> None:
    script(server, "1")
    assert soon(lambda: len(children(server.process.pid)) == 2)
    _, inner = children(server.process.pid)

    def held() -> tuple[int, int]:
        try:
            inside = len(os.listdir(f"/proc/{inner}/fd"))
        except PermissionError:  # not ours to look into
            inside = 0
        return len(os.listdir("/proc/self/fd")), inside

    before = held()
    for _ in range(50):
        script(server, "1")
    assert held() == before


def test_a_host_that_is_killed_leaves_nothing() -> None:
    code = (
        "import sys\nfrom cascade_rl.sandbox.process import *\nserver = ForkServer()\nprint('ready', flush=True)\n"
        "server.run(Job('program', source='import time; time.sleep(50)'), Limits(cpu_s=60, wall_s=60.0))"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert host.stdout is not None
    host.stdout.readline()
    assert soon(lambda: len(children(host.pid)) >= 4)  # bwrap, keeper, server, program
    inside = children(host.pid)
    host.kill()
    host.wait()
    host.stdout.close()
    assert soon(lambda: not set(inside) & set(processes()), within_s=10)


def test_a_pool_gives_results_in_order_and_replaces_what_dies() -> None:
    pool = SandboxPool(size=2)

    async def many() -> list[str]:
        jobs = [Job("program", source="print(int(input()) ** 2)", stdin=str(i).encode()) for i in range(30)]
        done = await asyncio.gather(*(pool.run(job, OURS) for job in jobs))
        return [result.exit.stdout.decode().strip() for result in done]

    try:
        assert asyncio.run(many()) == [str(i * i) for i in range(30)]
        for server in list(pool._alive):
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        assert asyncio.run(many())[3] == "9"
        assert len(pool._alive) <= 2
    finally:
        pool.close()


def test_a_pool_that_closes_fails_what_is_under_way() -> None:
    pool = SandboxPool(size=1)
    running = pool.submit(Job("program", source="import time; time.sleep(20)"), OURS)
    assert soon(lambda: any(len(children(server.process.pid)) == 3 for server in list(pool._alive)))
    pool.close()
    with pytest.raises(SandboxFailed):
        running.result(timeout=10)


def test_a_kept_sandbox_keeps_its_files_but_not_its_processes() -> None:
    async def work() -> None:
        sandbox = ProcessSandbox()
        try:
            await sandbox.write("/box/pkg/a.py", b"x = 1\n")
            await sandbox.write("b.py", b"from pkg.a import x\nprint(x + 1)\n")
            ran = await sandbox.run(
                ["sh", "-c", "echo 7 > c; sleep 50 & python3 b.py; ls /proc | grep -c '^[0-9]'"], timeout_s=30
            )
            assert (ran.exit_code, ran.stdout.split()[0]) == (0, b"2")
            assert await sandbox.read("c") == b"7\n"
            counted = await sandbox.run(["sh", "-c", "ls /proc | grep -c '^[0-9]*$'; cat"], timeout_s=30)
            assert int(counted.stdout) <= 4  # the shell and what it just started; the sleeper has ended
            assert (await sandbox.run(["sleep", "30"], timeout_s=0.3)).ended == "time"
            for path in ("none", "/box", "/proc/1/mem"):
                with pytest.raises(FileNotFoundError, match=f"cannot read {path}"):
                    await sandbox.read(path)
            with pytest.raises(OSError, match="cannot write /usr/x"):
                await sandbox.write("/usr/x", b"")
            assert (await sandbox.run(["no-such-command"], timeout_s=5)).exit_code != 0
        finally:
            await sandbox.close()
        with pytest.raises(SandboxError, match="it is closed"):
            await sandbox.read("c")

    asyncio.run(work())


@pytest.mark.parametrize("wait_s", [0.0, 0.03, 0.5])
def test_a_pool_that_is_closed_ends_what_runs_and_what_is_starting(wait_s: float, caplog: pytest.LogCaptureFixture) -> None:
    pool, begin = SandboxPool(size=1), time.monotonic()
    running = pool.submit(Job("program", source="import time\ntime.sleep(50)"), Limits(cpu_s=20, wall_s=60.0))
    time.sleep(wait_s)
    pool.close()
    assert running.cancelled() or isinstance(running.exception(timeout=20), SandboxFailed)
    assert time.monotonic() - begin < 20
    assert not pool._alive
    assert "once more" not in caplog.text


def test_what_nobody_waits_for_any_more_ends_with_its_sandbox() -> None:
    async def work() -> None:
        sandbox = ProcessSandbox()
        await sandbox.write("a", b"")
        running = asyncio.ensure_future(sandbox.run(["sleep", "50"], timeout_s=60))
        await asyncio.sleep(0.3)
        running.cancel()
        begin = time.monotonic()
        await sandbox.close()
        assert time.monotonic() - begin < 5

    asyncio.run(work())


def test_without_isolation_only_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    from cascade_rl.sandbox.process import close_shared_pools, shared_pool

    with pytest.raises(SandboxError, match='sandbox "subprocess" is not known; did you mean "unsafe-subprocess"'):
        ForkServer("subprocess")  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        pool = shared_pool("unsafe-subprocess")
    assert "no isolation" in caplog.text
    try:
        result = asyncio.run(pool.run(Job("program", source="print(int(input()) + 1)", stdin=b"3"), OURS))
        assert result.exit.stdout == b"4\n"
        slow = Limits(cpu_s=5, wall_s=0.4)
        assert asyncio.run(pool.run(Job("program", source="import time; time.sleep(30)"), slow)).exit.ended == "time"
        assert asyncio.run(pool.run(Job("calls", source="x = 1", calls=("x",)), OURS)).lines == (b'{"value": ["int", "0x1"]}',)
    finally:
        close_shared_pools()


def test_a_machine_that_cannot_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: Path("/bin/false"))
    with pytest.raises(SandboxError, match=r"bubblewrap did not start.*cascade doctor"):
        ForkServer()


def test_limits_must_be_positive() -> None:
    with pytest.raises(SandboxError, match="memory_bytes 0 must be more than 0"):
        Limits(memory_bytes=0)


@needs_sandbox
@pytest.mark.parametrize(
    "under_way",
    [
        "from cascade_rl.sandbox.process import Job, Limits, shared_pool\n"
        "pool = shared_pool()\n"
        "pool.submit(Job('program', source='1'), Limits()).result()\n"
        "pool.submit(Job('program', source='import time; time.sleep(100)'), Limits(wall_s=120.0))\n",
        "import asyncio, threading; from cascade_rl.sandbox.process import ProcessSandbox\n"
        "sandbox = ProcessSandbox()\n"
        "asyncio.run(sandbox.run(['true'], timeout_s=20))\n"
        "threading.Thread(target=lambda: asyncio.run(sandbox.run(['sleep', '100'], timeout_s=120)), daemon=True).start()\n"
        "time.sleep(1)\n",
    ],
    ids=["pool", "an agent's own"],
)
def test_python_ends_without_waiting_for_a_program_under_way(under_way: str) -> None:
    code = f"import time\n{under_way}"
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110)
    assert time.monotonic() - begin < 80  # seconds; it would wait for the program's hundred
