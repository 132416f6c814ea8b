"""What a signal does in every command: the first ends it in order, the second at once, each with a line that names it.

While modules are imported (`end_at_once`) there is nothing to put in order. From then on (`raise_interrupted`) the
first raises Interrupted. A command with something to save takes it as a `StopRequest`.
"""

import contextlib
import ctypes
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

log = logging.getLogger("clickwork")

# A terminal sends INT, QUIT and, as it is closed, HUP; Slurm sends USR1 ahead of a time limit (--signal=USR1@60).
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
ECHO_SECONDS = 0.2  # `timeout` sends one request twice, to the process and to its group
ORPHAN_ECHO_SECONDS = 5.0  # the kernel reports a launcher's death for each of its threads, which end one after another
LAST_WORDS_SECONDS = 2.0
PR_SET_PDEATHSIG = 1

_parents: list[int] = []  # with whose end, as the kernel reports it, this process is to end


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end; its message says what that means, as the end of a line."""

    def __init__(self, number: int, message: str = "stopped before the end") -> None:
        super().__init__(message)
        self.signal = signal.Signals(number)

    @property
    def status(self) -> int:
        """The exit status, as a shell reports a process that the signal ended."""
        return 128 + self.signal

    def __str__(self) -> str:
        return f"{self.signal.name}: {self.args[0]}"


def end_at_once() -> None:
    """Let a signal end the process with one line. One that torchrun started ends with torchrun, too."""
    if is_launched():
        end_with_parent()

    def leave(number: int, frame: FrameType | None) -> None:
        say(f"{signal.Signals(number).name}: stopped before it began")
        os._exit(128 + number)

    _handle(leave)


def raise_interrupted() -> None:
    """Let the first signal raise Interrupted in the main thread, and a second one end the process."""

    def interrupt(number: int) -> None:
        raise Interrupted(number)

    def leave(number: int) -> None:
        say(f"{signal.Signals(number).name}: stopped immediately")
        os._exit(128 + number)

    take_over(interrupt, leave)


def take_over(first: Callable[[int], None], second: Callable[[int], None]) -> None:
    """Call `first` for the first signal and `second` for those that follow, in the main thread."""
    came_at: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came_at.append(time.monotonic())
        if len(came_at) == 1:
            _forget_closed_terminal()
            first(number)
        elif not _is_echo(number, came_at[0]):
            second(number)

    _handle(handle)


class StopRequest:
    """True once a signal asked this process to stop; the first is logged, the second ends the process.

    A thread does both: the main thread may be inside a long operation, or in the middle of a line of the log.
    """

    def __init__(self, answer: str, cost: Callable[[], str]) -> None:
        """answer: what the first signal leads to; cost: what ending at once would lose. Both end a line of the log."""
        self.answer = answer
        self.signal: signal.Signals | None = None
        self.came_at = 0.0  # time.monotonic()
        self._cost = cost
        arrivals = wake_up()
        _handle(lambda number, frame: self.note(number))
        threading.Thread(target=self._watch, args=(arrivals,), daemon=True).start()

    def __bool__(self) -> bool:
        return self.signal is not None

    def note(self, number: int) -> None:
        """Take a signal as the request, if there is none yet."""
        if self.signal is None:
            self.signal, self.came_at = signal.Signals(number), time.monotonic()

    def _watch(self, arrivals: Iterator[int]) -> None:
        answered = False
        for number in arrivals:
            self.note(number)
            name = signal.Signals(number).name
            if not answered:
                answered = True
                _forget_closed_terminal()
                _log_once_a_machine("%s: %s; signal again to stop immediately", name, self.answer)
            elif not _is_echo(number, self.came_at):
                # The log may be held by a write to a terminal that takes none.
                threading.Timer(LAST_WORDS_SECONDS, os._exit, (128 + number,)).start()
                _log_once_a_machine("%s: stopped immediately: %s", name, self._cost())
                os.write(2, erased(2).encode())  # the progress bar, drawn again
                os._exit(128 + number)


def wake_up() -> Iterator[int]:
    """Signals as they come, for a thread: the main thread's handlers wait while a call in C does not return."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return _signals_from(reader)


def _signals_from(reader: int) -> Iterator[int]:
    """The signals that come by signal.set_wakeup_fd; and a hang-up that make, leading a session, keeps to itself."""
    events = select.poll()
    events.register(reader, select.POLLIN)
    if "MAKELEVEL" in os.environ and os.isatty(2):
        events.register(2, 0)
    while True:
        for descriptor, _ in events.poll():
            if descriptor == reader:
                yield from (number for number in os.read(reader, 64) if number in STOP_SIGNALS)
            else:
                events.unregister(descriptor)
                yield signal.SIGHUP


@contextlib.contextmanager
def kept_from_children() -> Iterator[None]:
    """Block a terminal's signals in processes that start within the context: it sends them to each, and one decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(STOP_SIGNALS) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def finish(status: int) -> None:
    """The work is done: a signal, as of a launcher when another process has ended, does not change the exit status."""
    _handle(lambda number, frame: os._exit(status))


def _is_echo(number: int, first_at: float) -> bool:
    """Return whether a signal repeats the first (time.monotonic()): a closed terminal's shell sends HUP once more."""
    is_orphan = bool(_parents) and os.getppid() != _parents[-1]
    seconds = ORPHAN_ECHO_SECONDS if is_orphan else ECHO_SECONDS
    return number == signal.SIGHUP or time.monotonic() - first_at < seconds


def is_launched() -> bool:
    """Return whether torchrun, or another launcher that speaks its language, started this process."""
    return bool(os.environ.get("RANK"))


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent ends (on Linux): kill -9 gives that one no time to."""
    _parents.append(os.getppid())
    prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: None)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def say(line: str) -> None:
    """Write a line to stderr, from one process of a machine; not through a stream that may be in the midst of one."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"{erased(2)}{line}\n".encode())


def erased(descriptor: int) -> str:
    """What erases a terminal's line, with a progress bar and the ^C that the terminal shows; elsewhere nothing."""
    return "\r\x1b[K" if os.isatty(descriptor) and os.environ.get("TERM") != "dumb" else ""


def _log_once_a_machine(message: str, *values: object) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":
        log.warning(message, *values)


def _handle(handler: Callable[[int, FrameType | None], None]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    for number in STOP_SIGNALS:
        # nohup has the hang-up ignored, of which a launcher's processes know nothing.
        if number != signal.SIGHUP or is_launched() or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _forget_closed_terminal() -> None:
    """Send to nowhere what would fail: writing to a terminal that was closed."""
    for descriptor in (0, 1, 2):
        hung_up = select.poll()
        hung_up.register(descriptor, 0)
        if any(events & select.POLLHUP for _, events in hung_up.poll(0)):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
