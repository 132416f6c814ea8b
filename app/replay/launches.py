"""The launches of a run, each with its steps in the record, and how their conditions differ from a replay's."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from app.record.documents import RunManifest
from app.runtime.environment import INTERFACES, SET_BY_LAUNCHER
from app.sharding.documents import PlannedTable
from app.training.state import RunLength, length_of
from common.documents import Json, plain_object

LAYOUT = ("image", "base_image", "world_size", "local_world_size", "num_threads", "platform", "compile")
OF_PROCESSES = ("world_size", "local_world_size", "num_threads")  # they do not affect the bits of deterministic=layout
# Set by torchrun or in its place; LAYOUT compares their effects.
BY_LAUNCHER = (
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "TORCH_CPP_LOG_LEVEL",
    SET_BY_LAUNCHER,
    *INTERFACES,
)
# Limits of a container: they change how long a step takes, and bits only through the number of threads in LAYOUT.
LIMITS = ("cpu_quota", "memory_limit_bytes")
ANOTHER_RUN = "trained by another run, from whose checkpoint this one started"


class Launch(NamedTuple):
    """Steps after `start` up to `end` (None: the run's last), and the manifest; None for steps of another run."""

    start: int
    end: int | None
    manifest: RunManifest | None


def launches_of(manifest: RunManifest) -> list[Launch]:
    """Return the launches with steps in the record, in order; steps trained again after a kill are the later one's."""
    parts = manifest.launches
    starts = [part.from_step for part in parts]
    launches = []
    for number, part in enumerate(parts):
        end = min(starts[number + 1 :], default=None)
        if end is None or end > starts[number]:
            launches.append(Launch(starts[number], end, part))
    first = launches[0].start
    return [Launch(0, first, None), *launches] if first else launches


def changes(launches: list[Launch], now: RunManifest, any_layout: bool = False) -> tuple[list[str], int | None]:
    """Return changes of code, versions, hardware, environment, files and layout since the launches, and a step.

    now: a manifest's content for the replay. any_layout: processes and threads do not decide bits. Bits can be equal up
    to the step, before which nothing differs; it is None if nothing differs at all.
    """
    by_line: dict[str, list[Launch]] = {}
    for launch in launches:
        for line in [ANOTHER_RUN] if launch.manifest is None else _changes(launch.manifest, now, any_layout):
            by_line.setdefault(line, []).append(launch)
    until = min((launch.start for affected in by_line.values() for launch in affected), default=None)
    return [
        line if affected == launches else f"{_steps(affected)}: {line}" for line, affected in by_line.items()
    ], until


def _steps(launches: list[Launch]) -> str:
    parts = [f"{one.start + 1} to {one.end}" if one.end is not None else f"from {one.start + 1} on" for one in launches]
    return f"steps {', '.join(parts)}"


def _changes(recorded: RunManifest, now: RunManifest, any_layout: bool) -> list[str]:
    keys = [key for key in LAYOUT if not (any_layout and key in OF_PROCESSES)]
    conditions = {key: (getattr(recorded, key), getattr(now, key)) for key in keys}
    if recorded.world_size != now.world_size and not any_layout:
        # It follows from world_size.
        del conditions["local_world_size"]
    lines = [
        f"{key}: {before or None} then, {after} now"
        for key, (before, after) in conditions.items()
        if (before or None) != (after or None)
    ]
    plans = recorded.plan, now.plan
    if not lines and not any_layout and _places(plans[0]) != _places(plans[1]):
        lines = [f"sharding: {_types(plans[0])} then, {_types(plans[1])} now"]
    for part in ("code", "versions", "hardware", "environment", "files"):
        before, after = (_facts(getattr(manifest, part)) for manifest in (recorded, now))
        lines += [
            f"{part} {key}: {before.get(key)} then, {after.get(key)} now"
            for key in sorted(before.keys() | after.keys())
            if key not in (*BY_LAUNCHER, *LIMITS) and before.get(key) != after.get(key)
        ]
    return lines


def _facts(part: Struct | Json) -> Json:
    return plain_object(part) if isinstance(part, Struct) else part


def _places(plan: Mapping[str, PlannedTable]) -> dict[str, tuple[str, list[int]]]:
    return {name: (entry.type, entry.ranks) for name, entry in plan.items()}


def _types(plan: Mapping[str, PlannedTable]) -> str:
    """Return a plan in few words: the number of tables of each kind of sharding."""
    kinds: dict[str, int] = {}
    for entry in plan.values():
        kind = f"{entry.type} on {len(entry.ranks)}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"


class ExpectedEvents(NamedTuple):
    """Events that the launches' schedules require and allow, as kinds and steps.

    required: events that a record up to `steps` must have. allowed: further events, next to a stop or a resumption.
    unknown: ranges of steps (start, end] of launches whose schedule is not known.
    """

    required: frozenset[tuple[str, int]]
    allowed: frozenset[tuple[str, int]]
    unknown: list[tuple[int, int]]

    def is_expected(self, kind: str, step: int) -> bool:
        """Return whether a schedule explains an event."""
        place = kind, step
        return place in self.required or place in self.allowed or any(a < step <= b for a, b in self.unknown)

    def steps(self, *kinds: str) -> frozenset[int]:
        """Return the steps of the required events of these kinds."""
        return frozenset(step for kind, step in self.required if kind in kinds)


def expected_events(launches: list[Launch], steps: int, has_ended: bool) -> ExpectedEvents:
    """Return the events of a run's first `steps` steps; has_ended: the run ended there, and was evaluated.

    If a launch was stopped at a step that is to be evaluated, the moment of the stop decides whether it was, unless the
    next launch evaluates it.
    """
    required: set[tuple[str, int]] = set()
    allowed: set[tuple[str, int]] = set()
    unknown = []
    for launch, following in zip(launches, [*launches[1:], None], strict=True):
        start, end = launch.start, min(steps if launch.end is None else launch.end, steps)
        schedule = launch.manifest.schedule if launch.manifest is not None else None
        if not schedule:
            unknown.append((start, end))
            continue
        length = length_of(schedule)
        every = schedule.log_every_steps
        required |= {("train", step) for step in range(start - start % every + every, end + 1, every)}
        if start < schedule.total_steps <= end:
            required.add(("train", schedule.total_steps))
        kinds = {"eval", "eval_train"} if schedule.evaluates_train else {"eval"}
        required |= {(kind, step) for step in _evaluations(length, start, end) if step < end for kind in kinds}
        allowed |= {(kind, step) for step in (start, end) for kind in ("eval", "eval_train")}
        if following is None:
            is_due = has_ended
        else:
            next_schedule = following.manifest.schedule if following.manifest is not None else None
            is_due = bool(next_schedule) and end < steps
            is_due = is_due and length_of(next_schedule).next_evaluation(end - 1) == end  # type: ignore[arg-type]
            kinds -= set() if next_schedule and next_schedule.evaluates_train else {"eval_train"}
        if is_due and end > start:
            required |= {(kind, end) for kind in kinds}
    return ExpectedEvents(frozenset(required), frozenset(allowed), unknown)


def _evaluations(length: RunLength, start: int, end: int) -> list[int]:
    """Return the steps in (start, end] after which a launch evaluates."""
    steps, step = [], start
    while step < min(length.total_steps, end):
        step = length.next_evaluation(step)
        steps.append(step)
    return [step for step in steps if step <= end]
