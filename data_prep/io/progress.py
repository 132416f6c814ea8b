"""Progress of a stage on stderr: a bar on a terminal, otherwise a line now and then."""

import sys
import threading
import time
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from common.files import format_bytes

REFRESH_SECONDS = 0.25
LINE_SECONDS = 10.0
NO_BYTES = "{desc}: {elapsed}{postfix}"


class WorkCounter(Protocol):
    """Bytes and rows done so far."""

    @property
    def bytes(self) -> int:
        """Return the bytes done."""

    @property
    def rows(self) -> int:
        """Return the rows done."""

    def add(self, num_bytes: int, num_rows: int) -> None:
        """Count work done."""

    def reset(self) -> None:
        """Set the counts to their start."""


class Tally:
    """Counters for the threads of this process; `at_hand` bytes were done before."""

    def __init__(self, at_hand: int = 0) -> None:
        self._at_hand = at_hand
        self._lock = threading.Lock()
        self.reset()

    def add(self, num_bytes: int, num_rows: int) -> None:
        """Count work done; a negative count is work to do again."""
        with self._lock:
            self.bytes += num_bytes
            self.rows += num_rows

    def reset(self) -> None:
        """Set the counts to what is at hand."""
        self.bytes, self.rows = self._at_hand, 0


class Progress:
    """Shows the counters of one stage until the `with` body ends.

    The body counts bytes of files on disk, and rows; other processes may do the counting. total_bytes: None if unknown.
    """

    def __init__(self, stage: str, total_bytes: int | None, counters: WorkCounter) -> None:
        self._stage = stage
        self._total = total_bytes
        self.counters = counters
        counters.reset()
        self._first = counters.bytes
        self._end = threading.Event()
        self._start = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            shape = NO_BYTES if total_bytes == 0 else None  # ordering rows reads no files
            self._bar = tqdm(
                total=total_bytes,
                desc=stage,
                unit="B",
                unit_scale=True,
                leave=False,
                initial=self._first,
                bar_format=shape,
            )
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def say(self, line: str) -> None:
        """Print a line on stderr, above the bar if there is one."""
        if self._end.is_set():
            return  # the stage is over
        if self._bar is not None:
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.close()
        if kind is None:
            self._print_line()

    def _refresh(self) -> None:
        """Redraw the bar, or print a line now and then, until the stage ends; runs in a thread."""
        next_line = self._start + LINE_SECONDS
        while not self._end.wait(REFRESH_SECONDS):
            if self._bar is not None:
                self._bar.n = self._bytes()
                self._bar.set_postfix_str(f"{self._rate()} rows/s" if self.counters.rows else "", refresh=True)
            elif time.monotonic() >= next_line:
                next_line += LINE_SECONDS
                self._print_line()

    def _bytes(self) -> int:
        """Return the bytes done, at most the total."""
        return self.counters.bytes if self._total is None else min(self.counters.bytes, self._total)

    def _rate(self) -> str:
        """Return the rows per second so far, as text."""
        return f"{self.counters.rows / max(time.monotonic() - self._start, 1e-9):,.0f}"

    def _print_line(self) -> None:
        """Print what is done, how fast, and how long the rest may take."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        num_bytes = self._bytes()
        speed = (num_bytes - self._first) / seconds
        fields = [f"{seconds:.1f} s"]
        if self._total != 0:  # merging in memory reads no files
            total = "" if self._total is None else f" of {format_bytes(self._total)}"
            fields = [f"{format_bytes(num_bytes)}{total}", f"{format_bytes(speed)}/s", *fields]
        if self.counters.rows:  # some stages, such as checksums, count no rows
            fields = [f"{self.counters.rows:,} rows", f"{self._rate()} rows/s", *fields]
        if self._total is not None and speed > 0 and num_bytes < self._total and not self._end.is_set():
            fields.append(f"{(self._total - num_bytes) / speed:.0f} s to go")
        print(f"{self._stage}: {', '.join(fields)}", file=sys.stderr, flush=True)
