"""Hostile programs, put together from pieces. Each is bounded by construction (at most a few hundred forks, a few GB asked for,
seconds), so that a wall that fails costs a test, not the machine."""

import os

from hypothesis import strategies as st

PIECES = {
    "forks": """
for i in range({n}):
    if os.fork() == 0:
        time.sleep(20); os._exit(0)""",
    "fork tree": """
for i in range(7):
    if os.fork() == 0:
        time.sleep(0.01 * i)
if os.getpid() != 1:
    time.sleep(20); os._exit(0)""",
    "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(20):
            try: os.close(fd)
            except OSError: pass
        for i in range(200): time.sleep(0.1)
    os._exit(0)""",
    "daemon that holds stdout": """
if os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(20); os._exit(0)""",
    "output": """
for i in range({n}):
    os.write(1 + i % 2, b'x' * 100_000)""",
    "memory": "x = [bytearray(10 << 20) for i in range({n})]",
    "memory of many": """
for i in range({n} % 12):
    if os.fork() == 0:
        x = bytearray(60 << 20); time.sleep(20); os._exit(0)""",
    "mapped memory": """
m = [mmap.mmap(-1, 20 << 20) for i in range({n})]
for x in m: x.write(b'x' * (20 << 20))""",
    "threads": """
for i in range({n}):
    threading.Thread(target=time.sleep, args=(20,)).start()""",
    "signals": """
for s in (1, 2, 3, 10, 15, 9, 19):
    for p in [-1, 0, 1, *range(2, 40)]:
        try: os.kill(p, s)
        except OSError: pass""",
    "deaf": """
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass""",
    "proc": """
for p in os.listdir('/proc'):
    for name in ('environ', 'mem', 'maps', 'cmdline', 'root/etc/passwd', 'cwd'):
        try: print(open(f'/proc/{{p}}/{{name}}', 'rb').read(1000))
        except OSError: pass
for name in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/1/oom_score_adj'):
    try: open(name, 'w').write('c')
    except OSError: pass""",
    "network": """
for where in (('1.1.1.1', 53), ('127.0.0.1', 22), ('10.0.0.1', 80)):
    s = socket.socket(); s.settimeout(0.1)
    try: s.connect(where); print('REACHED', where)
    except OSError: pass
s = socket.socket(); s.bind(('0.0.0.0', {port})); s.listen()
if os.fork() == 0:
    time.sleep(20); os._exit(0)""",
    "files outside": """
for place in ('/', '/tmp', '/var/tmp', '/dev/shm', '/dev', '/etc', '/root', '/home', '/usr', '/usr/local/lib', '/cascade',
              '/box', '/proc/1/cwd', '/box/../..', sys.prefix):
    try: open(place + '/{marker}', 'w').write('here')
    except OSError: pass
for link in ('/', '/usr', '/proc/1/root'):
    try: os.symlink(link, '/box/link'); open('/box/link/tmp/{marker}', 'w').write('here'); os.unlink('/box/link')
    except OSError: pass""",
    "disk": """
for i in range({n}):
    try: open(f'/tmp/{{i}}', 'wb').write(b'x' * (4 << 20))
    except OSError: break""",
    "many files": """
for i in range(100 * {n}):
    try: os.close(os.open(f'/box/{{i}}', os.O_CREAT))
    except OSError: break""",
    "descriptors": """
for i in range(1000):
    try: os.open('/dev/null', 0)
    except OSError: break""",
    "harness": """
for fd in range(3, 30):
    try: os.write(fd, b'D' * 1000 + b'\\n')
    except OSError: pass""",
    "privileges": """
libc = ctypes.CDLL(None)
for flags in (0x10000000, 0x20000, 0x20000000): libc.unshare(flags)
libc.mount(b'tmpfs', b'/box', b'tmpfs', 0, None); libc.umount2(b'/proc', 2); libc.ptrace(16, 1, 0, 0); libc.setuid(0); libc.setgid(0)
for n in (101, 165, 272, 308, 317, 321, 425): libc.syscall(n, 0, 0, 0, 0, 0)""",
    "limits": """
for kind in range(16):
    try: resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError): pass""",
    "shared memory": """
libc = ctypes.CDLL(None)
for i in range({n}): libc.shmget(1000 + i, 8 << 20, 0o1600)""",
    "own pipes": """
for fd in (1, 2, 3):
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK); fcntl.fcntl(fd, 1031, 1 << 20)
        back = os.open(f'/proc/self/fd/{{fd}}', os.O_RDONLY | os.O_NONBLOCK)
        for i in range({n}):
            os.write(fd, b'x' * 5000); os.read(back, 1 << 16)
    except OSError: pass""",
    "many pipes": """
for i in range({n}):
    try: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)
    except OSError: break""",
    "in flight": """
for i in range({n} % 100):  # sockets that hold each other, and our pipes and files, and that no process holds
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    held = os.open('/tmp/held', os.O_CREAT | os.O_RDWR); os.write(held, b'x' * 100_000)
    socket.send_fds(a, [b'x'], [a.fileno(), b.fileno(), 1, 2, held]); a.close(); b.close(); os.close(held)""",
    "queues": """
libc = ctypes.CDLL(None)
for i in range({n}):
    queue = libc.msgget(i + 1, 0o1666); libc.msgsnd(queue, b'x' * 1008, 1000, 0o4000)
    libc.semget(i + 1, 100, 0o1666); libc.mq_open(b'/%d' % i, 0o102, 0o666, None)""",
    "clones": """
libc = ctypes.CDLL(None)
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x4000000, 0x8000000, 0x2000000, 0x80):
    for own in (0, 0x10000000):
        if libc.syscall({clone}, flag | own | 17, 0, 0, 0, 0) == 0: os._exit(0)
for kind in ('pid', 'mnt', 'net', 'ipc', 'uts', 'user'):
    libc.setns(os.open(f'/proc/self/ns/{{kind}}', 0), 0)""",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "sleep": "time.sleep(20)",
    "spin": "while True: pass",
    "recursion": "sys.setrecursionlimit(10**6); f = lambda: f(); f()",
    "crash": "ctypes.string_at(0)",
    "exit": "os._exit({n} % 256)",
    "traceback": "raise ValueError('\\udcff' * {n})",
}  # fmt: skip
CLONE = {"x86_64": 56}.get(os.uname().machine, 220)
HEAD = "import ctypes, fcntl, mmap, os, resource, signal, socket, sys, threading, time\n"


def program(names: list[str], n: int, marker: str, port: int) -> str:
    """The pieces one after the other; a piece that fails does not keep the next from its turn."""
    told = [PIECES[name].format(n=n, marker=marker, port=port, clone=CLONE).strip("\n") for name in names]
    indented = ["    " + piece.replace("\n", "\n    ") for piece in told]
    return HEAD + "".join(f"try:\n{piece}\nexcept BaseException as error: print(error)\n" for piece in indented)


# (names of pieces, how much of each)
programs = st.tuples(st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=4), st.sampled_from([1, 20, 300]))
