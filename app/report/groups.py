"""Which runs are the same but for the seed, and what differs between the others."""

import json
from dataclasses import dataclass
from typing import Any

from app.report.read import RunFiles

# Of the configuration, what does not decide how a run learns or how fast it is.
BESIDE = ("run.", "train.seed", "checkpoint.", "record.", "published.", "data.path", "data.raw", "data.default_path",
          "environment.SLURM_JOB_ID")  # fmt: skip
# Of the manifest, what made the run. `platform` and `world_size` decide which comparison is made.
MADE_BY = ("code", "image", "versions", "hardware", "environment")


@dataclass
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: list[RunFiles]

    @property
    def name(self) -> str:
        names = [run.name for run in self.runs]
        return f"{self.label} ({', '.join(names[:4])}{', …' if len(names) > 4 else ''})"


def facts(run: RunFiles) -> dict[str, str]:
    """Everything that may differ between two runs, flat, as text."""
    manifest = run.manifest
    flat = dict(_flat("", run.config))
    flat |= {"dataset digest": manifest["dataset"]["digest"][:12], "world size": str(run.world_size),
             "platform": str(manifest.get("platform")), "threads": str(manifest.get("num_threads"))}  # fmt: skip
    for part in MADE_BY:
        flat |= dict(_flat(f"{part}.", manifest.get(part)))
    return flat


def differences(runs: list[RunFiles]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Keys whose values are not the same in all runs, with every run's value; and the others with theirs."""
    every = [facts(run) for run in runs]
    keys = sorted(key for key in set().union(*every) if not key.startswith("run."))
    values = {key: [entry.get(key, "–") for entry in every] for key in keys}
    differing = {key: row for key, row in values.items() if len(set(row)) > 1}
    return differing, {key: row[0] for key, row in values.items() if key not in differing}


def identity(run: RunFiles, *without: str) -> str:
    """What two runs must agree in to be one configuration, `without` some keys or beginnings of keys."""
    return json.dumps({key: value for key, value in facts(run).items() if not key.startswith((*BESIDE, *without))})


def group(runs: list[RunFiles]) -> list[Group]:
    """The runs by configuration, in the order given."""
    by_identity: dict[str, list[RunFiles]] = {}
    for run in runs:
        by_identity.setdefault(identity(run), []).append(run)
    return [Group(_label(number), members) for number, members in enumerate(by_identity.values())]


def _label(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"G{number + 1}"


def _flat(prefix: str, content: Any) -> list[tuple[str, str]]:
    if isinstance(content, dict):
        return [pair for key, value in content.items() for pair in _flat(f"{prefix}{key}.", value)]
    return [(prefix.rstrip("."), content if isinstance(content, str) else json.dumps(content))]
