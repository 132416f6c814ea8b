"""MLPerf's prepared events: converted, they give the dataset of the published log, byte by byte."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from common.errors import UserError
from data_prep.parsing.table_yaml import schema_path
from extensions.sequences.events import main
from extensions.sequences.keys import ImportConfig, ImportKeys
from tests.data_prep.conftest import prepare
from tests.extensions.sequences.event_logs import opened, reference, write_reference_log

# The reference's columns with the dtypes that `_FlatEventStore` gives them.
DTYPES: dict[str, Any] = {"uid": np.int64, "item_ids": np.int64, "timestamps": np.int64, "event_types": np.int64}
DTYPES |= {"played_ratio": np.float32, "is_listen_plus": np.bool_, "is_like": np.bool_, "is_skip": np.bool_}
DTYPES |= {"is_organic": np.int8}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The reference's own store of its tiny log, as its `save_mmap` writes it."""
    directory, z = tmp_path / "cache", reference()
    directory.mkdir()
    for name, dtype in DTYPES.items():
        np.save(directory / f"flat_{name}.npy", z[f"store_{name}"].astype(dtype))
    for name in ("user_start", "user_end", "unique_uids"):
        np.save(directory / f"{name}.npy", z[f"store_{name}"])
    counts = {"num_users": len(z["store_unique_uids"]), "total_events": len(z["store_uid"])}
    (directory / "store_meta.json").write_text(json.dumps(counts))
    (directory / "_READY").touch()
    return directory


def run(cache: Path, out: Path) -> int:
    return main(ImportConfig(ImportKeys(str(cache), str(out))))


def test_the_dataset_is_that_of_the_published_log(cache: Path, tmp_path: Path) -> None:
    published = write_reference_log(tmp_path)
    assert run(cache, tmp_path / "events.parquet") == 0
    schema = yaml.safe_load((tmp_path / "schema.yaml").read_text())
    for key in ("drop_last_seconds", "keep_seconds"):
        del schema[key]
    (tmp_path / "prepared.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    prepared = [f"data.raw={tmp_path}/events.parquet", f"data.schema={tmp_path}/prepared.yaml"]
    prepare(*published, f"data.path={tmp_path}/one")
    prepare(*prepared, f"data.path={tmp_path}/other")
    one, other = (opened(tmp_path / name)[1] for name in ("one", "other"))
    assert one._fields == other._fields
    for name in one._fields:
        first, second = getattr(one, name), getattr(other, name)
        assert (first.dtype, first.tobytes()) == (second.dtype, second.tobytes()), name
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.npy")}
    assert len(files) >= 5
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes(), file


def test_the_ready_made_schema_differs_in_the_period_alone() -> None:
    log, prepared = (yaml.safe_load(schema_path(name).read_text()) for name in ("yambda", "yambda_prepared"))
    assert {key for key in log if log[key] != prepared.get(key)} == {"drop_last_seconds", "keep_seconds"}
    assert prepared.items() <= log.items()


def test_what_is_incomplete_or_damaged_is_refused(cache: Path, tmp_path: Path) -> None:
    items = (cache / "flat_item_ids.npy").read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            run(cache, tmp_path / "events.parquet")
        assert [path for path in tmp_path.iterdir() if "events" in path.name] == []

    (cache / "flat_item_ids.npy").write_bytes(items[:-8])
    refused("flat_item_ids.npy: not a NumPy array .*; download it again")
    np.save(cache / "flat_item_ids.npy", np.arange(3))
    refused(r"flat_item_ids.npy: shape \(3,\), but store_meta.json counts 536 events; download it again")
    (cache / "flat_item_ids.npy").write_bytes(items)
    np.save(cache / "flat_event_types.npy", np.full(536, 5))
    refused("flat_event_types.npy: rows from 0 on: .*; download it again")
    (cache / "_READY").unlink()
    refused("no _READY, the last file of MLPerf's prepared events; complete the download")
