"""A machine with pretended GPUs, on which tests run programs."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.pretend_cuda import device

REPOSITORY = Path(__file__).parents[2]
LIMIT_SECONDS = 600  # a slow, busy machine takes a minute for what takes seconds elsewhere
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Machine:
    """Starts on first use, in some four seconds; a program then takes a fork of its server."""

    def __init__(self, devices: int = 2) -> None:
        self._devices = devices
        self._server: subprocess.Popen[str] | None = None

    def run(
        self, module: str, *arguments: str, cwd: Path, processes: int = 1, environment: Mapping[str, str] = {}
    ) -> "subprocess.CompletedProcess[str]":
        """What `python -m module arguments` does on each of `processes` processes, to its end.

        The status is the lowest that is not 0; one program at a time.
        """
        cwd.mkdir(parents=True, exist_ok=True)
        for name in (".stdout", ".stderr"):
            (cwd / name).write_bytes(b"")
        for pid in cwd.glob(".pid.*"):
            pid.unlink()
        server = self._server = self._server or self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        request = {
            "module": module,
            "arguments": arguments,
            "cwd": str(cwd),
            "processes": processes,
            "environment": dict(environment),
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        ready, _, _ = select.select([server.stdout], [], [], LIMIT_SECONDS)
        answer = server.stdout.readline() if ready else ""
        out, err = ((cwd / name).read_text() for name in (".stdout", ".stderr"))
        if not answer:
            self.close()
            raise AssertionError(f"{module} did not end, or its server did\n{err}")
        statuses = json.loads(answer)
        status = next((status for status in sorted(statuses) if status), 0)  # of processes ended by a signal first
        return subprocess.CompletedProcess([module, *arguments], status, out, err)

    def close(self) -> None:
        """End the server and what it still runs."""
        server, self._server = self._server, None
        if server is None:
            return
        if server.stdin is not None:
            server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)
            server.wait()

    def _start(self) -> "subprocess.Popen[str]":
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        environment |= {
            "PYTHONPATH": device.PYTHON_PATH,
            "OMP_NUM_THREADS": "1",
            "PRETEND_CUDA_DEVICES": str(self._devices),
        }
        command = [sys.executable, "-m", "tests.pretend_cuda.server"]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=REPOSITORY,
            start_new_session=True,
        )
