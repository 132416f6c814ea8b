"""Comparison of an existing dataset with the keys that the user gives."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from data_prep.config.keys import parse_size
from data_prep.config.presets import KEYS_OF_RULES, SPLIT_IS_THEIRS
from data_prep.dataset.format import Manifest
from data_prep.dataset.multi_hot import MLPERF_SIZES, MLPERF_V2
from data_prep.dataset.options import FILES, GENERATORS, Encoding, SplitMethod

# Keys that decide a dataset's rows, and their names in a manifest's `encoding`.
IN_ENCODING = {
    "encoding": "name",
    **KEYS_OF_RULES,
    "dense_transform": "dense_transform",
    "split.method": "split",
    "split.held_out": "held_out",
    "split.seed": "split_seed",
    "split.column": "split_column",
    "chunk_bytes": "chunk_bytes",
    "keep_texts": "keep_texts",
    "multi_hot.sizes": "multi_hot.sizes",
    "multi_hot.distribution": "multi_hot.distribution",
    "multi_hot.seed": "multi_hot.seed",
}


class Difference(NamedTuple):
    """A key with its value in the configuration and the value that the dataset was made with."""

    key: str
    setting: Any
    recorded: Any


def compared_keys(settings: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return the given keys that decide a dataset's rows; keys of generators only for the dataset's own generator."""
    groups = {key.partition(".")[0] for key in recorded_keys(manifest)} & set(GENERATORS)
    decisive = {key: value for key, value in settings.items() if key in IN_ENCODING or key.partition(".")[0] in groups}
    # A manifest has the sum of such files, not their place.
    return {key: value for key, value in decisive.items() if key not in FILES}


def first_difference(settings: Mapping[str, Any], manifest: Manifest) -> Difference | None:
    """Return the first of the given keys, with plain values, that differs from the dataset's."""
    recorded = recorded_keys(manifest)
    for key, value in compared_keys(settings, manifest).items():
        recorded_value = recorded.get(key)
        if recorded_value is None and manifest.has_given_splits and key.startswith("split."):
            recorded_value = "files given for each split"
        if _comparable(key, value, manifest) != recorded_value:
            return Difference(key, value, recorded_value)
    return None


def _comparable(key: str, value: Any, manifest: Manifest) -> Any:
    if key == "chunk_bytes":
        return parse_size(str(value), f"data.{key}")
    if key == "split.method" and "split" in manifest.encoding:
        table = manifest.encoding.get("table")
        is_own = table is not None or any("split" in source for source in manifest.sources)
        return SplitMethod[value].resolved(len(manifest.sources), is_own, "time" in (table or {})).value
    if key == "multi_hot.sizes":
        sizes = list(MLPERF_SIZES if value == MLPERF_V2 else value)
        return sizes if max(sizes) > 1 else None  # bags of one id are no bags
    return value


def recorded_keys(manifest: Manifest) -> dict[str, Any]:
    """Return the keys that decided a dataset's rows, with the values in force, including resolved ones."""
    encoding = manifest.encoding
    flat = dict(encoding) | {f"multi_hot.{key}": value for key, value in (encoding.get("multi_hot") or {}).items()}
    recorded = {key: flat[name] for key, name in IN_ENCODING.items() if flat.get(name) is not None}
    if manifest.has_given_splits:
        recorded = {key: value for key, value in recorded.items() if not key.startswith("split.")}
    for group in GENERATORS:
        values = encoding.get(group) or manifest.extra.get(group) or {}
        recorded |= {f"{group}.{key}": value for key, value in values.items() if key != "version"}
    return recorded


def keys_in_force(manifest: Manifest) -> dict[str, Any]:
    """Return the recorded settings that reproduce the dataset."""
    recorded = recorded_keys(manifest)
    name = recorded.get("encoding")
    if name not in [encoding.value for encoding in Encoding]:  # imported or generated rows, or events
        recorded.pop("encoding", None)
    if name != Encoding.vocabulary.value:
        recorded.pop("vocabulary_order", None)
    if name in [encoding.value for encoding in SPLIT_IS_THEIRS]:
        recorded = {key: value for key, value in recorded.items() if not key.startswith("split.")}
    return {key: value for key, value in recorded.items() if key not in FILES}
