"""torch.cuda's streams, events and graphs: work is done where it is issued, so that there is nothing to wait for."""

import time
from typing import Any

import torch

NAMES = ["Event", "Stream", "StreamContext", "stream", "default_stream", "current_stream", "set_stream", "CUDAGraph"]
NAMES += ["graph_pool_handle", "is_current_stream_capturing"]
ops = torch.ops.pretend_cuda


def index_of(device: Any = None) -> int:
    """The number of a device; without one, of the current device."""
    index = device if device is None or isinstance(device, int) else torch.device(device).index
    return ops.current() if index is None else index


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self.time: float | None = None

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        ops.wait("Event.synchronize")

    def elapsed_time(self, end: "Event") -> float:
        if not (self.enable_timing and end.enable_timing and self.time and end.time):
            raise ValueError("both events must be recorded, with enable_timing=True")
        return (end.time - self.time) * 1e3


class Stream:
    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device_index, self.device_type, self.priority = index_of(device), 1, priority
        self.device, self.stream_id, self.cuda_stream = torch.device("cuda", self.device_index), 0, 0

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        ops.wait("Stream.synchronize")

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class StreamContext:
    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.outer = current_stream()
        set_stream(self.stream or self.outer)

    def __exit__(self, *_: object) -> None:
        set_stream(self.outer)


stream = StreamContext
_defaults: dict[int, Stream] = {}
_current: dict[int, Stream] = {}


def default_stream(device: Any = None) -> Stream:
    return _defaults.setdefault(index_of(device), Stream(device))


def current_stream(device: Any = None) -> Stream:
    return _current.get(index_of(device)) or default_stream(device)


def set_stream(stream: Stream) -> None:
    _current[ops.current()] = stream


class CUDAGraph:
    """The operators between its beginning and its end, which `replay` computes again from their tensors' new values."""

    def capture_begin(self, *pool: Any, **_: Any) -> None:
        ops.begin_capture()

    def capture_end(self) -> None:
        self.graph = ops.end_capture()

    def replay(self) -> None:
        ops.replay(self.graph)


def graph_pool_handle() -> tuple[int, int]:
    return 0, 0


def is_current_stream_capturing() -> bool:
    return bool(ops.is_capturing())
