"""The launches of a run, each with the steps of its record, and what of their conditions differs from a replay's."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.runtime.environment import INTERFACES, SET_BY_LAUNCHER

LAYOUT = ("image", "base_image", "world_size", "num_threads", "platform", "compile")
# Set by torchrun or instead of it: their effects are compared by LAYOUT.
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
ANOTHER_RUN = "trained by another run, from whose checkpoint this one started"


class Launch(NamedTuple):
    """Steps after `start` up to `end` (None: the run's last), and the manifest; None: those of another run."""

    start: int
    end: int | None
    manifest: Mapping[str, Any] | None


def launches_of(manifest: Mapping[str, Any]) -> list[Launch]:
    """The launches whose steps the record holds, in order: what was killed and trained again is the later one's."""
    parts = [*manifest.get("earlier", []), manifest]
    starts = [int(part.get("from_step", 0)) for part in parts]
    launches = []
    for number, part in enumerate(parts):
        end = min(starts[number + 1 :], default=None)
        if end is None or end > starts[number]:
            launches.append(Launch(starts[number], end, part))
    first = launches[0].start
    return [Launch(0, first, None), *launches] if first else launches


def changes(launches: list[Launch], now: Mapping[str, Any]) -> tuple[list[str], int | None]:
    """Changes of code, versions, hardware, environment, files and layout since the launches; how far bits can be equal.

    now: a manifest's content for the replay. The second is the last step before which nothing differs, None if nothing
    does at all.
    """
    by_line: dict[str, list[Launch]] = {}
    for launch in launches:
        for line in [ANOTHER_RUN] if launch.manifest is None else _changes(launch.manifest, now):
            by_line.setdefault(line, []).append(launch)
    until = min((launch.start for affected in by_line.values() for launch in affected), default=None)
    return [
        line if affected == launches else f"{_steps(affected)}: {line}" for line, affected in by_line.items()
    ], until


def _steps(launches: list[Launch]) -> str:
    parts = [f"{one.start + 1} to {one.end}" if one.end is not None else f"from {one.start + 1} on" for one in launches]
    return f"steps {', '.join(parts)}"


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    layout = [
        f"{key}: {then.get(key)} then, {now[key]} now"
        for key in LAYOUT
        if then.get(key) != now[key] and (key in then or key != "compile")
    ]
    if not layout and _places(then.get("plan") or {}) != _places(now["plan"]):
        layout = [f"sharding: {_types(then.get('plan') or {})} then, {_types(now['plan'])} now"]
    return layout + [
        f"{part} {key}: {then[part].get(key)} then, {now[part].get(key)} now"
        for part in ("code", "versions", "hardware", "environment", "files")
        if part in then or part != "files"  # which older runs lack
        for key in sorted(then.get(part, {}).keys() | now[part].keys())
        if key not in BY_LAUNCHER and then.get(part, {}).get(key) != now[part].get(key)
    ]


def _places(plan: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (entry.get("type"), entry.get("ranks")) for name, entry in plan.items()}


def _types(plan: Mapping[str, Any]) -> str:
    """A plan in few words: how each kind of sharding is used."""
    kinds: dict[str, int] = {}
    for entry in plan.values():
        kind = f"{entry.get('type')} on {len(entry.get('ranks') or [])}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
