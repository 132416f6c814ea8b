"""A `python` that starts in a second, without the imports of torch and TorchRec, which take four.

`fast_python()` is a program to be called like Python. It passes its arguments, environment, files and namespaces to a
server that has imported the libraries, but nothing of this project: a fork of that runs the module from the directory
where Python would find it. The program forwards signals and ends as the fork ends; if it is killed, so is the fork.
"""

import ast
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "clickwork", "common", "data_prep", "extensions")  # of this project
NAMESPACES = ("net", "uts", "mnt")  # the last one moves the working directory
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
CLIENT = """#!{python} -IS
import json, os, signal, socket, struct, sys
words = [word for word in sys.argv[1:] if word != "-u"]
if words[:1] not in (["-m"], ["-c"]) and words != ["-"]:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect("{address}")
request = json.dumps([words, sys.argv[0], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [struct.pack("I", len(request))], [0, 1, 2])
def forward(number, frame):
    try:
        server.send(bytes([number]))
    except OSError: # the process has just ended
        pass
for number in {signals}:
    signal.signal(number, forward)
server.sendall(request)
(status,) = struct.unpack("i", server.recv(4) or struct.pack("i", -9))
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def fast_python(**variables: str) -> Path:
    """The program, in what looks like this environment; its server has these variables, and ends with this process."""
    temporary = tempfile.TemporaryDirectory(prefix="python")  # its path is short, as a socket's address must be
    folder = Path(temporary.name)
    program, address = folder / "bin/python", folder / "server"
    program.parent.mkdir()
    for path in [*Path(sys.prefix).iterdir(), *Path(sys.prefix, "bin").iterdir()]:
        link = folder / path.relative_to(sys.prefix)
        if link not in (program, program.parent):
            link.symlink_to(path)
    values = {"python": sys.executable, "address": address, "signals": [int(number) for number in FORWARDED]}
    program.write_text(CLIENT.format(**values))
    program.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.fast_python", str(address)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    _SERVERS.append((server, temporary))
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return program


# Each lasts as long as this process, at whose end the server's stdin is closed.
NOT_FORKED = ("onnxruntime",)  # has threads from its import on, which a fork lacks when it ends

_SERVERS: list[tuple["subprocess.Popen[bytes]", "tempfile.TemporaryDirectory[str]"]] = []


def libraries() -> list[str]:
    """The modules of other projects that modules of this one import at their top."""

    def imported(path: Path) -> Iterator[str]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                yield from (name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module

    names = {name for package in PACKAGES for path in (ROOT / package).rglob("*.py") for name in imported(path)}
    return sorted(name for name in names if name.partition(".")[0] not in (*PACKAGES, *NOT_FORKED))


def serve(address: str) -> None:
    """Fork for each client until stdin is closed. Returns in a fork that has become the client's process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    print("ready", flush=True)
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        client = listener.accept()[0]
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            header, files, *_ = socket.recv_fds(client, 4, 3)
            (length,) = struct.unpack("I", header)
            request = json.loads(client.recv(length, socket.MSG_WAITALL))
            if (pid := os.fork()) == 0:
                become(client, files, *request)
                return
            watch(client, pid)
        client.close()
    os._exit(0)


def watch(client: socket.socket, pid: int) -> NoReturn:
    """Forward the client's signals to its process, kill that once the client is gone, and report how it ends."""
    end = os.pidfd_open(pid)
    while end not in select.select([client.fileno(), end], [], [])[0]:
        for number in client.recv(16) or [signal.SIGKILL]:
            os.kill(pid, number)
    with contextlib.suppress(BrokenPipeError):
        client.send(struct.pack("i", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def become(
    client: socket.socket, files: list[int], words: list[str], program: str, cwd: str, environment: dict[str, str]
) -> None:
    """Take the client's namespaces, directory, files, variables and arguments."""
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    libc = ctypes.CDLL(None, use_errno=True)
    for name in NAMESPACES:
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
            with open(f"/proc/{pid}/ns/{name}", encoding="utf-8") as namespace:
                assert libc.setns(namespace.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    client.close()
    os.chdir(cwd)
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [cwd, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.executable = program
    sys.argv[:] = words
    sys.orig_argv[1:] = words


def main() -> None:
    """Import the libraries, serve, and run in each fork what its client was called with."""
    own_path = sys.path[:1]
    importlib.import_module("app")  # sets variables that libraries read when they are imported
    for name in libraries():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    own = re.compile(rf"({'|'.join(PACKAGES)}|tests(?!\.pretend_cuda))(\..*)?")  # a pretended device stays
    for name in filter(own.fullmatch, [*sys.modules]):
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path not in (str(ROOT), *own_path)]
    gc.collect()
    gc.freeze()
    serve(sys.argv[1])
    if sys.argv[0] == "-m":
        module = sys.argv.pop(1)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        code = sys.argv.pop(1) if sys.argv[0] == "-c" else sys.stdin.read()
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
