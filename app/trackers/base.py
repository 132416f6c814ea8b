"""Interface of trackers, and a run's figures and settings in their form."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from app.config import AppConfig
from app.metrics.documents import AnyEvent, Curves
from app.record.documents import Summary
from common.documents import plain_object

# Keys of an event that are not figures of the run.
NO_FIGURES = ("event", "step", "samples", "seconds", "epoch", "steps")


class Tracker(Protocol):
    """A view of a run for another tool; only rank 0 has trackers."""

    def event(self, event: AnyEvent) -> None:
        """Show one event of metrics.jsonl."""

    def curves(self, curves: Curves) -> None:
        """Show an evaluation's curves."""

    def close(self, summary: Summary | None) -> None:
        """Show the summary, if there is one, and close the view."""


class Setting(NamedTuple):
    """Inputs of a new tracker: the run's directory, its configuration, whole and flat, and the step it starts from.

    file: the tracker's own file in the directory. rows: number per split of the dataset.
    """

    directory: Path
    file: Path
    config: AppConfig
    settings: Mapping[str, str | int | float | bool]
    rows: Mapping[str, int]
    world_size: int
    from_step: int


def figures(event: AnyEvent) -> dict[str, float]:
    """Return the numbers of an event by tag, `<kind>/<key>`, or `<kind>/<key>/<key>` for nested ones.

    Figures that were not measured are left out.
    """
    plain = {key: value for key, value in plain_object(event).items() if key not in NO_FIGURES}
    return dict(_numbers(event.event, plain))


def _numbers(tag: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{tag}/{key}", part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield tag, float(value)


def settings(config: Mapping[str, Mapping[str, object]], world_size: int) -> dict[str, str | int | float | bool]:
    """Return a run's settings, flat: the groups that affect learning and speed."""
    groups = ("model", "loss", "optimizer", "schedule", "sharding", "train", "runtime")
    flat: dict[str, str | int | float | bool] = {"world_size": world_size}
    for group in groups:
        for key, value in config[group].items():
            if value is not None:
                flat[f"{group}.{key}"] = value if isinstance(value, (str, int, float, bool)) else str(value)
    return flat
