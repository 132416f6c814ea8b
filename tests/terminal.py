"""A command on a terminal of its own, as a person would start it: what is shown there, keys, and closing it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

CTRL_C = b"\x03"
PATIENCE_SECONDS = 240
COLUMNS = 120


class Terminal:
    """A session whose foreground job is the command."""

    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._keys, screen = pty.openpty()
        fcntl.ioctl(self._keys, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self._text = b""
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, "TERM": "xterm"},
            stdin=screen,
            stdout=screen,
            stderr=screen,
            preexec_fn=_take_terminal,  # noqa: PLW1509  # setsid alone leaves the session without a terminal
        )
        os.close(screen)
        self._closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing:
            if not select.select([self._keys], [], [], 0.05)[0]:
                continue
            try:
                text = os.read(self._keys, 1 << 16)
            except OSError:  # nobody has it open any more
                break
            with self._more:
                self._text += text
                self._more.notify_all()
        os.close(self._keys)  # here, as a read that waits would keep it open

    @property
    def text(self) -> str:
        """All that was written to the terminal so far."""
        return self._text.decode(errors="replace").replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """What a person sees: each line after its last return to the margin or erasure, without colours."""
        text = re.sub(r"\x1b\[\d*m", "", self.text)
        return [re.split(r"\r|\x1b\[K|\x1b\[A", line)[-1].rstrip() for line in text.split("\n")]

    def wait_for(self, pattern: str) -> None:
        """Wait until a pattern has been written."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._more:
            while not re.search(pattern, self.text):
                assert self.process.poll() is None, f"{pattern!r} never came:\n{self.text}"
                self._more.wait(1.0)
                if time.monotonic() > deadline:
                    self.process.kill()
                    raise AssertionError(f"{pattern!r} never came:\n{self.text}")

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._keys, key)

    def close(self) -> None:
        """Close the window: the kernel sends SIGHUP."""
        self._closing = True
        self._reader.join()

    def end(self) -> int:
        """Wait for the command's exit status, as a shell reports it."""
        try:
            status = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end:\n{self.text}") from None
        self._reader.join(1)  # what it wrote last; a process that outlives it keeps the terminal open
        return status if status >= 0 else 128 - status


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
