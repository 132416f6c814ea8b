"""One thing to measure, and what came out."""

from collections.abc import Callable
from typing import Any, NamedTuple

from app.metrics.ceilings import Ceilings, WorkTiming


class Case(NamedTuple):
    """Work to be timed and what one run of it must do at least.

    Attributes:
        name: family/variant, such as embedding_bag/tbe_sgd_sum_train.
        shape: its sizes in words.
        work: one run.
        samples: how many a run handles, over all processes; 0 where that means nothing.
        bytes: that must be moved between memory and the device's cores if nothing is in a cache: each operand read
            once, each result written once, rows of tables once a lookup.
        flops: floating-point operations of its matrix products, a multiplication and an addition counting as two.
        is_latency: how long a single run takes is asked, so runs are timed one by one.
    """

    name: str
    shape: str
    work: Callable[[], Any]
    samples: int
    bytes: int
    flops: int
    is_latency: bool = False

    @property
    def family(self) -> str:
        """What `operators` selects by."""
        return self.name.split("/")[0]


def result(case: Case, timing: WorkTiming, ceilings: Ceilings) -> dict[str, Any]:
    """A case's figures; shares are of the measured ceilings, and above 1 where caches serve what was counted."""
    seconds = timing.median
    return {
        "name": case.name,
        "shape": case.shape,
        "median_ms": seconds * 1e3,
        "p10_ms": timing.p10 * 1e3,
        "p90_ms": timing.p90 * 1e3,
        "p95_ms": None if timing.p95 is None else timing.p95 * 1e3,
        "p99_ms": None if timing.p99 is None else timing.p99 * 1e3,
        "timed_samples": timing.samples,
        "runs_per_timed_sample": timing.runs_per_sample,
        "samples_per_second": case.samples / seconds if case.samples else None,
        "bytes": case.bytes,
        "flops": case.flops,
        "bytes_per_second": case.bytes / seconds,
        "flops_per_second": case.flops / seconds if case.flops else None,
        "share_of_bandwidth": case.bytes / seconds / ceilings.bytes_per_second,
        "share_of_matrix_rate": case.flops / seconds / ceilings.flops_per_second if case.flops else None,
    }
