"""Signals of a process and its children; standard streams of native code.

During imports (`end_at_once`) there is nothing to clean up. After them (`raise_interrupted`) the first signal raises
Interrupted. A command with something to save handles it as a `StopRequest`.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from common.command import log

# A terminal sends INT, QUIT and, when it is closed, HUP; Slurm sends USR1 ahead of a time limit (--signal=USR1@60).
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
ECHO_SECONDS = 0.2  # `timeout` sends a request twice, to the process and to its group
ORPHAN_ECHO_SECONDS = 5.0  # The kernel reports a launcher's death for each of its threads, which end one after another.
LAST_WORDS_SECONDS = 2.0  # for the log to take the last line; then the process ends without it
PR_SET_PDEATHSIG = 1

_parents: list[int] = []  # parents whose end, reported by the kernel, ends this process


class Interrupted(KeyboardInterrupt):
    """Raised if a signal asked the command to end; the message, at the end of a line, says what that means."""

    def __init__(self, number: int, message: str = "stopped before the end") -> None:
        """number: of the signal. message: what it means for the work."""
        super().__init__(message)
        self.signal = signal.Signals(number)

    @property
    def status(self) -> int:
        """Return the exit status that a shell reports for a process ended by the signal."""
        return 128 + self.signal

    def __str__(self) -> str:
        return f"{self.signal.name}: {self.args[0]}"


def end_at_once() -> None:
    """Let a signal during imports end the process with one line. A process of torchrun also ends with torchrun."""
    if is_launched():
        end_with_parent()

    def leave(number: int, frame: FrameType | None) -> None:
        say(f"{signal.Signals(number).name}: stopped before it began")
        # An import leaves nothing to clean up, and its library may catch an exception that is raised inside.
        os._exit(128 + number)

    _set_handlers(leave)


def raise_interrupted() -> None:
    """Let the first signal raise Interrupted in the main thread, and a second one end the process."""

    def interrupt(number: int) -> None:
        raise Interrupted(number)

    def leave(number: int) -> None:
        say(f"{signal.Signals(number).name}: stopped immediately")
        os._exit(128 + number)

    handle_signals(interrupt, leave)


def handle_signals(first: Callable[[int], None], second: Callable[[int], None]) -> None:
    """Call `first` for the first signal and `second` for later ones that are no echo, in the main thread."""
    came_at: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came_at.append(time.monotonic())
        if len(came_at) == 1:
            # The signal may say that the terminal is closed, and both functions write to it.
            _forget_closed_terminal()
            first(number)
        elif not _is_echo(number, came_at[0]):
            second(number)

    _set_handlers(handle)


class StopRequest:
    """True after a signal asked this process to stop. The first is logged, the second ends the process.

    A thread does both, since the main thread may be in a long operation or in the middle of a line of the log.
    """

    def __init__(self, answer: str, cost: Callable[[], str]) -> None:
        """answer: effect of the first signal; cost: loss by ending at once. Both complete a line of the log."""
        self.answer = answer
        self.signal: signal.Signals | None = None
        self.came_at = 0.0  # time.monotonic()
        self._cost = cost
        arrivals = watch_signals()
        _set_handlers(lambda number, frame: self.note(number))
        threading.Thread(target=self._watch, args=(arrivals,), daemon=True).start()

    def __bool__(self) -> bool:
        return self.signal is not None

    def note(self, number: int) -> None:
        """Record a signal and its time as the request, unless an earlier signal is recorded."""
        if self.signal is None:
            self.signal, self.came_at = signal.Signals(number), time.monotonic()

    def _watch(self, arrivals: Iterator[int]) -> None:
        """Log the first signal, and end the process at the second that is no echo; runs in a thread."""
        answered = False
        for number in arrivals:
            self.note(number)
            name = signal.Signals(number).name
            if not answered:
                answered = True
                _forget_closed_terminal()
                _log_once_a_machine("%s: %s; signal again to stop immediately", name, self.answer)
            elif not _is_echo(number, self.came_at):
                # A terminal that accepts no output may block the log.
                threading.Timer(LAST_WORDS_SECONDS, os._exit, (128 + number,)).start()
                _log_once_a_machine("%s: stopped immediately: %s", name, self._cost())
                os.write(2, erase_sequence(2).encode())  # the progress bar, drawn again
                os._exit(128 + number)


def watch_signals() -> Iterator[int]:
    """Yield signals in a thread, since the main thread's handlers wait for calls in C to return."""
    reader, writer = os.pipe()
    # A full pipe must not block the process in the middle of a signal's handler.
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return _read_signals(reader)


def _read_signals(reader: int) -> Iterator[int]:
    """Yield the signals of set_wakeup_fd, and a hang-up that make, as leader of the session, does not pass on."""
    events = select.poll()
    events.register(reader, select.POLLIN)
    if "MAKELEVEL" in os.environ and os.isatty(2):
        events.register(2, 0)  # poll reports a hang-up even where no event is asked for
    while True:
        for descriptor, _ in events.poll():
            if descriptor == reader:
                yield from (number for number in os.read(reader, 64) if number in STOP_SIGNALS)
            else:
                events.unregister(descriptor)
                yield signal.SIGHUP


@contextlib.contextmanager
def block_in_children() -> Iterator[None]:
    """Block signals in processes started within the context: a terminal signals all of them, but one decides."""
    # SIGTERM still ends such a process, as it is sent to one process, not to all of a terminal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(STOP_SIGNALS) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def finish(status: int) -> None:
    """Let later signals end the process with `status`: a launcher sends one when another process ends."""
    _set_handlers(lambda number, frame: os._exit(status))


def _is_echo(number: int, first_at: float) -> bool:
    """Return whether a signal repeats the first (time.monotonic()), as a closed terminal's shell repeats HUP."""
    # The kernel gives a process whose launcher has died another parent.
    is_orphan = bool(_parents) and os.getppid() != _parents[-1]
    seconds = ORPHAN_ECHO_SECONDS if is_orphan else ECHO_SECONDS
    return number == signal.SIGHUP or time.monotonic() - first_at < seconds


def is_launched() -> bool:
    """Return whether torchrun, or a launcher with its environment variables, started this process."""
    return bool(os.environ.get("RANK"))


def end_with_parent() -> None:
    """Let the kernel send SIGTERM when the parent ends (on Linux), since after kill -9 the parent cannot."""
    _parents.append(os.getppid())
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def say(line: str) -> None:
    """Write a line to stderr, on one process of a machine; bypass streams, which may be in the middle of a line."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"{erase_sequence(2)}{line}\n".encode())


def erase_sequence(descriptor: int) -> str:
    """Return the sequence that erases a terminal's line with a progress bar and ^C; "" without a terminal."""
    return "\r\x1b[K" if os.isatty(descriptor) and os.environ.get("TERM") != "dumb" else ""


def _log_once_a_machine(message: str, *values: object) -> None:
    """Log a warning on one process of a machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        log.warning(message, *values)


def _set_handlers(handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle all STOP_SIGNALS by a function; no effect outside the main thread."""
    # Python sets handlers in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        return
    for number in STOP_SIGNALS:
        # nohup ignores the hang-up, but a launcher's processes do not know of it.
        if number != signal.SIGHUP or is_launched() or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _forget_closed_terminal() -> None:
    """Redirect a closed terminal's descriptors to /dev/null, since writing to them would fail."""
    for descriptor in (0, 1, 2):
        hung_up = select.poll()
        hung_up.register(descriptor, 0)
        if any(events & select.POLLHUP for _, events in hung_up.poll(0)):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


@contextlib.contextmanager
def discard_native_stdout() -> Iterator[None]:
    """Discard what C and C++ code writes to standard output within the context.

    gloo of torch up to 2.10 logs its connections there, and a command's JSON goes to standard output.
    """
    # Buffers of Python and of C may hold output from before, which must not be discarded.
    sys.stdout.flush()
    flush_native = getattr(ctypes.CDLL(None), "fflush", lambda _: None)
    flush_native(None)
    stdout_copy, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        # Flush, or C's buffer would be printed later.
        flush_native(None)
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
        os.close(nowhere)
