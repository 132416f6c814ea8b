"""How far a job is: a bar on a terminal, a plain line now and then elsewhere, both on stderr."""

import sys
import threading
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from data_prep.pool import Counters

REFRESH_SECONDS = 0.25
LINE_SECONDS = 10.0


class Progress:
    """Shows the counters of one stage until the `with` body ends.

    The body counts bytes of the files as they lie on disk and rows; other processes may do the counting.
    """

    def __init__(self, stage: str, total_bytes: int, counters: Counters) -> None:
        self._stage = stage
        self._total = total_bytes
        self._counters = counters
        self._done = threading.Event()
        self._start = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total_bytes, desc=stage, unit="B", unit_scale=True, leave=False)
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> "Progress":
        self._counters.reset()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.close()
        if kind is None:
            self._print_line()

    def _refresh(self) -> None:
        next_line = self._start + LINE_SECONDS
        while not self._done.wait(REFRESH_SECONDS):
            if self._bar is not None:
                self._bar.n = min(self._counters.bytes, self._total)
                self._bar.set_postfix_str(f"{self._rate()} rows/s" if self._counters.rows else "", refresh=True)
            elif time.monotonic() >= next_line:
                next_line += LINE_SECONDS
                self._print_line()

    def _rate(self) -> str:
        return f"{self._counters.rows / max(time.monotonic() - self._start, 1e-9):,.0f}"

    def _print_line(self) -> None:
        seconds = max(time.monotonic() - self._start, 1e-9)
        done = min(self._counters.bytes, self._total)
        share = done / self._total if self._total else 1.0
        said = [f"{seconds:.1f} s"]
        if self._total:  # merging in memory reads no files
            said = [f"{done / 1e6:,.1f} of {self._total / 1e6:,.1f} MB", f"{done / 1e6 / seconds:,.1f} MB/s", *said]
        if self._counters.rows:  # stages such as a checksum know nothing of rows
            said = [f"{self._counters.rows:,} rows", f"{self._rate()} rows/s", *said]
        if 0 < share < 1 and not self._done.is_set():
            said.append(f"{seconds * (1 - share) / share:.0f} s to go")
        print(f"{self._stage}: {', '.join(said)}", file=sys.stderr, flush=True)
