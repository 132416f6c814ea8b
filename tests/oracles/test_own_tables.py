"""Drawn tables of every form of file are prepared as docs/data.md says, and their rows encoded alike as new ones."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_prep import job_setup
from data_prep.encoding.encoder import Encoder
from data_prep.encoding.new_rows import read_new_rows
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import config
from tests.oracles.own_tables import RAW_KINDS, bags_of, dense_of, drawn_table, ids_of, value_of, write_raw
from tests.oracles.preparation import SPLITS
from tests.oracles.test_preparation import loaded

FAST, ALL, ROWS = 16, 48, 60
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FAST)) for seed in range(ALL)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(job_setup, "MIN_OWN_CHUNK_BYTES", draw.choice([300, 1 << 20]))  # several chunks to a shard
    raw = RAW_KINDS[seed % len(RAW_KINDS)]
    table, transform = drawn_table(draw, raw, ROWS), draw.choice(["signed_log1p", "minmax", "raw"])
    cap = draw.choice([None, 50, 1000])
    print(f"{raw}, {transform}, {cap}, {table.schema()}", *((c.name, c.kind, c.texts[:5]) for c in table.columns))
    path, root = tmp_path / f"rows.{raw}", tmp_path / "out"
    write_raw(table, path)
    (tmp_path / "schema.yaml").write_text(table.schema())
    keys = [
        f"data.raw={path}",
        f"data.schema={tmp_path}/schema.yaml",
        f"data.path={root}",
        "data.split.method=fraction",
    ]
    keys += ["data.encoding=vocabulary"] if cap is None else ["data.encoding=hash", f"data.max_ind_range={cap}"]
    keys += [f"data.dense_transform={transform}", f"data.chunk_bytes={draw.choice([700, 10**6])}"]
    manifest = preprocess(config("data=custom", *keys))
    verify_dataset(root)

    parts = [loaded(root, split) for split in SPLITS]
    (label,) = [column for column in table.columns if column.use == "label"]
    assert [each for labels, _, _ in parts for each in labels] == [
        int(value) if table.rule is None else int(value >= 3) for value in label.values
    ]
    dense, ids = dense_of(table, transform), ids_of(table, root, cap)
    np.testing.assert_allclose(np.concatenate([numbers for _, numbers, _ in parts]), dense, rtol=3e-6, atol=1e-6)
    for feature, expected in zip(table.features("sparse"), ids, strict=True):
        assert [bag for _, _, bags in parts for bag in bags[feature[0]]] == expected
        if cap is None:
            train = bags_of(table, feature)[: manifest.splits["train"].rows]
            counts = Counter(value_of(text) for bag in train for text in bag)
            ranked = sorted(counts, key=lambda value: (-counts[value], value))
            assert np.load(root / "vocab" / f"{feature[0]}.npy").tolist() == ranked

    encoder = Encoder.load(root)
    new = read_new_rows(path, encoder.shape(encoder.input_columns))
    block = encoder.parse_columns({name: new.columns[name] for name in encoder.input_columns}, "new")
    encoded, unknown = encoder.encode(block), encoder.unknown(block)
    np.testing.assert_allclose(encoded.dense, dense, rtol=3e-6, atol=1e-6)
    names = [name for name, _, _ in table.features("sparse")]
    single = [names.index(name) for name in names if name not in manifest.ragged]
    assert encoded.sparse.T.tolist() == [[bag[0] for bag in ids[number]] for number in single]
    for name, bags in zip(manifest.ragged, encoded.bags, strict=True):
        assert [bags.part(row, row + 1).ids.tolist() for row in range(ROWS)] == ids[names.index(name)]
    if cap is None:
        assert encoded.out_of_vocabulary.tolist() == [sum(bag.count(0) for bag in bags) for bags in ids]
        assert unknown.T.tolist() == [[0 in bag for bag in bags] for bags in ids]
