"""Sources of an existing dataset; comparing it with a command makes, downloads or replaces nothing."""

from collections.abc import Sequence
from pathlib import Path

from common.documents import Json
from common.errors import UserError
from data_prep.config.keys import DataConfig
from data_prep.dataset.format import MANIFEST_NAME, Manifest, load_manifest
from data_prep.sources.discover import Source, without_packing

SOURCE_MD5 = "source_md5"  # key in a manifest's `extra`: MD5 of each source, if files are given for each split


def finished_manifest(data: DataConfig, root: Path) -> Manifest | None:
    """Return the manifest of the dataset at `root`; None without one, or if it is to be replaced. Raises UserError."""
    return None if data.overwrite or not (root / MANIFEST_NAME).exists() else load_manifest(root)


def recorded_sources(directory: Path, manifest: Manifest) -> list[Source]:
    """Return the sources that the manifest describes, as if in `directory`, whether or not their files still exist."""
    return [
        Source(
            str(directory / entry["name"]),
            entry["name"],
            entry["bytes"],
            mtime,
            without_packing(entry["name"]) != entry["name"],
            None,
            ctime,
            entry.get("split"),
        )
        for entry, (mtime, ctime) in zip(manifest.sources, recorded_times(manifest), strict=True)
    ]


def recorded_times(manifest: Manifest) -> list[tuple[int, int]]:
    """Return the times in nanoseconds at which each source was written and last changed (0: not recorded).

    Programs such as tar can set a file's time of writing, but not that of its last change.
    """
    nothing = [0] * len(manifest.sources)
    times = (manifest.extra.get(f"source_{kind}_ns") or nothing for kind in ("mtime", "ctime"))
    return list(zip(*times, strict=True))


def note_times(sources: Sequence[Source]) -> dict[str, list[int]]:
    """Return the entries of the manifest's `extra` that `recorded_times` reads."""
    return {
        "source_mtime_ns": [source.mtime_ns for source in sources],
        "source_ctime_ns": [source.ctime_ns for source in sources],
    }


def other_dataset(root: Path, difference: str) -> UserError:
    """Return the error that the dataset at `root` is not the one that the command describes."""
    return UserError(
        f"{root}: holds another dataset ({difference}); choose another data.path, or set data.overwrite=true"
    )


def sources_of_generated(data: DataConfig, root: Path, manifest: Manifest, settings: Json) -> list[Source]:
    """Return the sources of generated rows at `root`."""
    group = data.source_kind.group
    recorded = manifest.extra.get(group) or {}
    for key, value in settings.items():
        if recorded.get(key) != value:
            raise other_dataset(root, f"{group}.{key} is {recorded.get(key)} there, {value} here")
    return recorded_sources(root, manifest)
