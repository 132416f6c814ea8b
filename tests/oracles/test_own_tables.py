"""Drawn tables of every form of file are prepared as docs/inspect.md says, and their rows encoded alike as new ones.

They lie in one file that is divided, or in one to two for each split.
"""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data_prep import job
from data_prep.dataset.format import open_shard
from data_prep.dataset.options import LabelKind
from data_prep.encoding import Encoder, read_new_rows
from data_prep.lookup import VocabularyTexts
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import prepare, seeds
from tests.data_prep.tables import ALLOW, paths
from tests.oracles.own_tables import RAW_KINDS, OwnTable, bags_of, dense_of, drawn_table, ids_of, value_of, write_raw
from tests.oracles.test_preparation import SPLITS, loaded, transformed

ROWS = 60


def own_transforms(draw: random.Random, table: OwnTable, schema: dict[str, Any]) -> dict[int, str]:
    """Give some dense columns transforms of their own in the schema; the transform of each, by its place."""
    own: dict[int, str] = {}
    for place, entry in enumerate(schema["dense"]):
        if draw.random() < 0.5:
            own[place] = draw.choice(["raw", "log1p", "signed_log1p", "standard", "minmax", "quantile"])
            fields = entry if isinstance(entry, dict) else {"column": entry}
            schema["dense"][place] = {**fields, "transform": own[place]}
    return own


def write_splits(draw: random.Random, table: OwnTable, directory: Path) -> tuple[list[str], dict[str, int]]:
    """Write the table's rows as files for each split; the keys that name them, and the rows of each split."""
    held_out = draw.choice([(), ("val",), ("test",), ("val", "test")])
    sizes = {"train": ROWS - 10 * len(held_out), **dict.fromkeys(held_out, 10)}
    keys, begin = [], 0
    for split, size in sizes.items():
        cuts = sorted({0, draw.choice([0, 4]), size})
        files = []
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            files.append(directory / f"{split}_{number}.{table.raw}")
            write_raw(table, files[-1], list(range(begin + start, begin + stop)))
            if table.raw == "csv" and draw.random() < 0.5:
                files[-1].write_bytes(files[-1].read_bytes().replace(b"\n", b"\r\n"))
        keys.append(f"data.{split}=[{','.join(map(str, files))}]")
        begin += size
    return keys, sizes


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(16, 40))
def test_a_drawn_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(job, "MIN_OWN_CHUNK_BYTES", draw.choice([300, 1 << 20]))  # several chunks to a shard
    raw = RAW_KINDS[seed % len(RAW_KINDS)]
    table, transform = drawn_table(draw, raw, ROWS), draw.choice(["signed_log1p", "minmax", "raw"])
    cap, threshold, rate = draw.choice([None, None, 50, 1000]), draw.choice([1, 1, 2, 4]), draw.choice([0, 0, 0, 1])
    (label,) = [column for column in table.columns if column.use == "label"]
    schema = yaml.safe_load(table.schema())
    if is_number := table.rule is None and rate == 0 and draw.random() < 0.4:
        label.values = [draw.randint(-20, 50) / 8 for _ in range(ROWS)]
        label.texts = [str(each).replace(".", table.decimal) for each in label.values]
        schema["label"] = {"column": schema["label"], "kind": "number"}
    own = own_transforms(random.Random(f"transforms {seed}"), table, schema)
    print(own, raw, transform, cap, table.schema(), *((each.name, each.kind, each.texts[:5]) for each in table.columns))
    path, root = tmp_path / f"rows.{raw}", tmp_path / "out"
    write_raw(table, path)
    keys = paths(tmp_path, yaml.safe_dump(schema, allow_unicode=True), path.name)
    keys += [ALLOW, f"data.dense_transform={transform}"]
    keys += [f"data.sampling.negative_drop_rate={rate}"] if rate else []
    if is_given := draw.random() < 0.5:
        splits, sizes = write_splits(draw, table, tmp_path)
        keys += ["data.raw=null", *splits]
    else:
        keys.append("data.split.method=fraction")
    keys += [f"data.frequency_threshold={threshold}"] if cap is None else [f"data.max_ind_range={cap}"]
    keys += [f"data.encoding={'vocabulary' if cap is None else 'hash'}"]
    manifest = prepare(*keys, f"data.chunk_bytes={draw.choice([700, 10**6])}")
    verify_dataset(root)

    parts = [loaded(root, split) for split in SPLITS]
    assert (manifest.label_kind is LabelKind.number) == (manifest.label_rate is None) == is_number
    labels = [value if table.rule is None else int(value >= 3) for value in label.values]
    kept = [row for row in range(ROWS) if labels[row] or not rate]
    if is_given:
        assert manifest.splits["train"].rows == sum(row < sizes["train"] for row in kept)
    train = kept[: manifest.splits["train"].rows]
    shards = [(split, shard) for split in SPLITS for shard in manifest.splits[split].shards]
    stored = [open_shard(root, split, shard, manifest).labels[:, 0] for split, shard in shards]
    assert {each.dtype for each in stored} == {np.dtype(np.float32 if is_number else np.int32)}
    assert np.concatenate(stored).tolist() == [labels[row] for row in kept]
    dense, ids = dense_of(table, transform, train if is_given else kept), ids_of(table, root, cap)
    numbers_of_rows = dense_of(table, "float64")
    for place, name in own.items():
        dense[:, place] = transformed(numbers_of_rows[:, place], name, train)
    actual = np.concatenate([numbers for _, numbers, _ in parts])
    np.testing.assert_allclose(actual, dense[kept], rtol=3e-6, atol=1e-6)
    for feature, expected in zip(table.features("sparse"), ids, strict=True):
        assert [bag for _, _, bags in parts for bag in bags[feature[0]]] == [expected[row] for row in kept]
        if cap is None:
            of_rows = bags_of(table, feature)
            counts = Counter(text for row in train for text in of_rows[row])
            ranked = sorted(counts, key=lambda text: (-counts[text], value_of(text)))
            ranked = [text for text in ranked if counts[text] >= threshold]
            texts = VocabularyTexts(root, feature[0])
            assert [texts[number] for number in range(1, len(texts) + 1)] == ranked
            assert np.load(root / "vocab" / f"{feature[0]}.npy").tolist() == list(map(value_of, ranked))

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
        assert unknown.T.tolist() == [[0 in bag for bag in bags] for bags in ids]
