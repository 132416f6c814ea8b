"""Drawn jobs of preparation against the naive program: every encoding, order, split, transform, threshold and cap."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.dataset.format import load_manifest, open_shard
from data_prep.encoding import Encoder
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import prepare, seeds
from tests.oracles.own_tables import value_of
from tests.oracles.preparation import SPLITS, Bags, Job, check_split, dense_of, ids_of

KINDS = np.arange(26) % 9 + 6  # values of each column


def drawn_keys(rng: np.random.Generator, is_own: bool, days: int) -> dict[str, Any]:
    """Keys that go together, of a command for so many files."""

    def maybe(key: str, *values: Any) -> dict[str, Any]:
        return {key: values[rng.integers(len(values))]} if rng.integers(2) else {}

    names = (
        ["vocabulary", "hash"]
        if is_own
        else ["vocabulary", "hash", "torchrec", "torchrec_fixed", "dlrm_kaggle", "amd_blog"]
    )
    keys: dict[str, Any] = {"encoding": names[rng.integers(len(names))]}
    if keys["encoding"] == "amd_blog":
        return keys | maybe("max_categories", 9, 12)
    if keys["encoding"] == "dlrm_kaggle":
        return keys
    keys |= {"max_ind_range": int(rng.integers(3, 40))} if keys["encoding"] == "hash" else maybe("max_ind_range", 4, 9)
    if keys["encoding"] != "hash":
        keys |= maybe("frequency_threshold", 2, 4)
    if keys["encoding"] == "vocabulary":
        keys |= maybe("vocabulary_order", "frequency", "first_appearance", "value")
    if not keys["encoding"].startswith("torchrec"):
        keys |= maybe("sampling.negative_drop_rate", 0.5)
        transforms = ["signed_log1p", "minmax", "raw"] + ([] if is_own else ["log1p", "log_float32", "integers"])
        keys |= maybe("dense_transform", *transforms)
    last_day = ["last_day"] if days > 1 and is_own else []
    keys |= maybe("split.method", "auto", "fraction", "random", "scikit_learn", *last_day)
    if keys.get("split.method") in ("fraction", "random", "scikit_learn"):
        keys |= maybe("split.held_out", 0.25, 0.4)
    return keys | (maybe("split.seed", 3) if keys.get("split.method") in ("random", "scikit_learn") else {})


def drawn_criteo(rng: np.random.Generator, directory: Path) -> tuple[Job, list[str]]:
    """A job on Criteo's rows, in one to three days."""
    days = rng.integers(30, 90, rng.integers(1, 4)).tolist()
    job = Job(drawn_keys(rng, False, len(days)), [], [], [[] for _ in range(26)], days)
    for day, count in enumerate(days):
        lines = []
        for _ in range(count):
            dense = [len(job.labels), *(int(x) for x in rng.integers(-3, 2000, 12))]
            missing = rng.random(12) < 0.1
            values = [int(v) for v in rng.zipf(1.6, 26) % KINDS * 2654435761 % 2**32]
            job.labels.append(int(rng.integers(2)))
            job.dense.append([dense[0], *(0 if gone else x for x, gone in zip(dense[1:], missing, strict=True))])
            for column, value in zip(job.sparse, values, strict=True):
                column.append([value])
            texts = [str(dense[0]), *("" if gone else str(x) for x, gone in zip(dense[1:], missing, strict=True))]
            lines.append("\t".join([str(job.labels[-1]), *texts, *(f"{v:08x}" if v else "" for v in values)]) + "\n")
        (directory / f"day_{day}").write_text("".join(lines))
    return job, [f"data.raw={directory}/day_*"]


def drawn_table(rng: np.random.Generator, directory: Path) -> tuple[Job, list[str]]:
    """A job on CSV files, with negative numbers, empty fields and a column of several values."""
    days = rng.integers(40, 90, rng.integers(1, 4)).tolist()
    job = Job(drawn_keys(rng, True, len(days)), [], [], [[], []], days, is_own=True)
    lines = []
    for row in range(sum(days)):
        score, price = int(rng.integers(0, 6)), "" if rng.integers(6) == 0 else f"{rng.normal(0, 30):.3f}"
        user, tags = f"u{rng.zipf(1.5) % 17}", [f"t{tag}" for tag in rng.integers(0, 7, rng.integers(0, 4))]
        job.labels.append(int(score >= 3))
        job.dense.append([row, float(price or 0)])
        job.sparse[0].append([value_of(user)])
        job.sparse[1].append([value_of(tag) for tag in tags])
        lines.append(f"{row},{score},{price},{user},{'|'.join(tags)}\n")
    for day, end in enumerate(np.cumsum(days).tolist()):
        part = lines[end - days[day] : end]
        (directory / f"rows_{day}.csv").write_text("".join(["row,score,price,user,tags\n", *part]))
    schema = "label: score >= 3\ndense: [row, price]\nsparse: [user, {column: tags, separator: '|'}]\n"
    (directory / "schema.yaml").write_text(schema)
    return job, [f"data.raw={directory}/rows_*.csv", f"data.schema={directory}/schema.yaml"]


def loaded(root: Path, split: str) -> tuple[list[int], np.ndarray, dict[str, Bags]]:
    manifest = load_manifest(root)
    shards = [open_shard(root, split, shard, manifest) for shard in manifest.splits[split].shards]
    labels = [int(label) for shard in shards for label in shard.labels[:, 0]]
    dense = np.concatenate([np.zeros((0, len(manifest.schema["dense"]))), *(shard.dense for shard in shards)])
    ids: dict[str, Bags] = {name: [] for name in manifest.schema["sparse"]}
    single = [name for name in ids if name not in manifest.ragged]
    for shard in shards:
        for name, column in zip(single, shard.sparse.T, strict=True):
            ids[name] += [[int(value)] for value in column]
        for name, bags in zip(manifest.ragged, shard.bags, strict=True):
            ids[name] += [bags.part(row, row + 1).ids.tolist() for row in range(len(shard.labels))]
    return labels, dense, ids


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(6, 36))
@pytest.mark.parametrize("draw", [drawn_criteo, drawn_table])
def test_a_drawn_job(tmp_path: Path, draw: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, draw is drawn_table])
    job, raw = draw(rng, tmp_path)
    overrides = [f"data.{key}={value}" for key, value in job.keys.items()]
    print(f"seed {seed}: {' '.join(overrides)}, days {job.days}")
    chunk = int(rng.integers(2000, 9000))
    prepare(*raw, *overrides, f"data.path={tmp_path}/out", f"data.chunk_bytes={chunk}")
    verify_dataset(tmp_path / "out")
    splits = {split: loaded(tmp_path / "out", split) for split in SPLITS}
    transformed = dense_of(job)
    rows = {
        split: [int(np.abs(transformed - numbers).max(axis=1).argmin()) for numbers in dense]
        for split, (_, dense, _) in splits.items()
    }
    check_split(job, rows)
    split_rows = sorted(row for split in SPLITS for row in rows[split])
    names = [f"cat_{i}" for i in range(26)] if not job.is_own else ["user", "tags"]
    columns: dict[str, Bags] = {}
    for name, values in zip(names, job.sparse, strict=True):
        ids_of_column = ids_of(job, values, rows["train"], split_rows)
        columns |= {} if ids_of_column is None else {name: ids_of_column}
    for split, (labels, dense, ids) in splits.items():
        assert labels == [job.labels[row] for row in rows[split]]
        np.testing.assert_allclose(dense, transformed[rows[split]].reshape(dense.shape), rtol=3e-6, atol=3e-6)
        assert ids == {name: [column[row] for row in rows[split]] for name, column in columns.items()}
    check_encoder(tmp_path, job, transformed, columns)


def check_encoder(directory: Path, job: Job, transformed: np.ndarray, columns: dict[str, Bags]) -> None:
    """All raw rows as new ones have the numbers and ids that the dataset has."""
    if job.encoding == "torchrec":  # it may round ids, and its numbers depend on the file
        return
    encoder = Encoder.load(directory / "out")
    contents = [path.read_bytes() for path in sorted(directory.glob("rows_*" if job.is_own else "day_*"))]
    header = contents[0][: contents[0].index(b"\n") + 1] if job.is_own else b""
    text = header + b"".join(content.removeprefix(header) for content in contents)
    encoded = encoder.encode(encoder.parse(text, "new"))
    assert encoded.labels.tolist() == job.labels
    if job.encoding != "torchrec_fixed":
        np.testing.assert_allclose(encoded.dense, transformed.reshape(encoded.dense.shape), rtol=3e-6, atol=3e-6)
    bags = dict(zip(load_manifest(directory / "out").ragged, encoded.bags, strict=True))
    ids = {name: [bag.part(row, row + 1).ids.tolist() for row in range(len(job.labels))] for name, bag in bags.items()}
    single = [name for name in columns if name not in bags]
    ids |= {name: [[one] for one in column] for name, column in zip(single, encoded.sparse.T.tolist(), strict=True)}
    assert ids == columns
