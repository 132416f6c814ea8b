"""Drawn jobs of preparation as docs/data.md describes it, in plain lines: every encoding, order, split and transform.

The draws of a random split and of a sample are not in the docs, so the rows of each split are an input; that they can
be the rows of such a split is what `check_split` checks.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from data_prep.dataset.format import load_manifest, open_shard
from data_prep.encoding import Encoder, read_new_rows
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import prepare, seeds
from tests.oracles.own_tables import value_of

Bags = list[list[int]]  # of a column: the values of each row
SPLITS = ("train", "val", "test")


@dataclass
class Job:
    """A drawn job: the keys of its command, and its raw rows in order.

    dense [rows][N]: numbers, of which the first is the row's own; sparse [F][rows]: values; days: rows of each file;
    times: of an own table whose schema names them.
    """

    keys: dict[str, Any]
    labels: list[int]
    dense: list[list[float]]
    sparse: list[Bags]
    days: list[int]
    is_own: bool = False
    times: Sequence[int] = ()

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or what the docs say for it if it is not given."""
        return self.keys.get(key, default)

    @property
    def encoding(self) -> str:
        return str(self.get("encoding", "vocabulary"))

    @property
    def method(self) -> str:
        by_encoding = {"dlrm_kaggle": "fraction", "amd_blog": "scikit_learn"}
        if self.encoding in by_encoding:
            return by_encoding[self.encoding]
        setting = self.get("split.method", "auto")
        usual = (
            ("time" if self.times else "random") if self.is_own else "last_day" if len(self.days) > 1 else "fraction"
        )
        return usual if setting == "auto" else str(setting)


def check_split(job: Job, rows: dict[str, list[int]]) -> None:
    everything = range(len(job.labels))
    split_rows = sorted(row for split in SPLITS for row in rows[split])
    assert len(set(split_rows)) == len(split_rows)
    rate = job.get("sampling.negative_drop_rate", 0.0)
    negatives = [row for row in everything if not job.labels[row]]
    dropped = sorted(set(everything) - set(split_rows))
    assert set(dropped) <= set(negatives)
    _expect_share(len(dropped), len(negatives), rate)
    held_out = [*rows["val"], *rows["test"]] if job.encoding != "dlrm_kaggle" else [*rows["test"], *rows["val"]]
    train, share = rows["train"], job.get("split.held_out", 1 / 7)
    seeds = {"torchrec": 0, "torchrec_fixed": 0, "dlrm_kaggle": 123}
    if job.encoding in seeds and job.method in ("fraction", "last_day"):  # NumPy's legacy generator has shuffled train
        order = np.random.RandomState(seeds[job.encoding]).permutation(len(train))
        train = [row for _, row in sorted(zip(order.tolist(), train, strict=True))]
    if job.method == "scikit_learn":
        share, seed = (0.2, 42) if job.encoding == "amd_blog" else (share, job.get("split.seed", 0))
        expected = train_test_split(split_rows, test_size=share, random_state=seed)
        assert [train, held_out] == expected
        assert not rows["val"]
        return
    assert [train, rows["val"], rows["test"]] == [sorted(each) for each in (train, rows["val"], rows["test"])]
    if job.method == "random":
        _expect_share(len(held_out), len(split_rows), share)
        _expect_share(len(rows["val"]), len(held_out), 0.5)
        return
    if job.method == "time":
        assert rows == expected_by_time(np.array(job.times), split_rows, share)
        return
    if job.method == "group":
        groups = [{job.sparse[0][row][0] for row in rows[split]} for split in SPLITS]
        assert sum(map(len, groups)) == len(set.union(*groups))
        return
    if job.method == "stratified":
        for label in (0, 1):
            counts = [sum(job.labels[row] == label for row in rows[split]) for split in SPLITS]
            of_label = int(sum(counts) * share + 1e-9)
            assert counts[1:] == [of_label - of_label // 2, of_label // 2]
        spread = 5 * np.std(split_rows) / math.sqrt(len(held_out))
        assert abs(np.mean(held_out) - np.mean(split_rows)) < spread  # by chance, not from one end
        return
    halves = (len(held_out) - len(held_out) // 2, len(held_out) // 2)
    first, second = ("test", "val") if job.encoding == "dlrm_kaggle" else ("val", "test")
    assert (len(rows[first]), len(rows[second])) == halves
    assert train + held_out == split_rows
    if job.method == "last_day":
        begin = sum(job.days[:-1])
        assert held_out == [row for row in split_rows if row >= begin]
    else:
        assert abs(len(held_out) - share * len(split_rows)) <= 2


def expected_by_time(times: np.ndarray, rows: Sequence[int], share: float) -> dict[str, list[int]]:
    """Each boundary lies at the change of time nearest to its share; no split is empty."""
    order = np.sort(times[rows])
    changes = np.flatnonzero(order[1:] != order[:-1]) + 1
    held_out = max(2, int(len(rows) * share + 1e-9))
    ideal = [len(rows) - held_out, len(rows) - held_out // 2]
    nearest = [changes[np.argmin(np.abs(changes - place))] for place in ideal]
    first = min(nearest[0], changes[-2])
    second = max(nearest[1], changes[np.searchsorted(changes, first, side="right")])
    numbers = np.searchsorted(order[[first, second]], times[rows], side="right")
    return {split: np.array(rows)[numbers == place].tolist() for place, split in enumerate(SPLITS)}


def _expect_share(count: int, of: int, share: float) -> None:
    assert abs(count - share * of) <= 5 * math.sqrt(share * (1 - share) * of) + 1e-9


def dense_of(job: Job) -> np.ndarray:
    """All rows' numbers after their transform, [rows, N] float64."""
    usual = {"torchrec": "torchrec", "torchrec_fixed": "torchrec", "dlrm_kaggle": "log_float32", "amd_blog": "minmax"}
    transform = job.get("dense_transform", "signed_log1p" if job.is_own else usual.get(job.encoding, "log1p"))
    x = np.array(job.dense, np.float64).reshape(len(job.labels), -1)
    if transform in ("raw", "integers"):
        return x
    if transform in ("log1p", "log_float32"):
        return np.log(1 + np.maximum(x, 0))
    if transform == "signed_log1p":
        return np.where(x < 0, -np.log(1 + np.abs(x)), np.log(1 + np.abs(x)))
    if transform == "torchrec":
        files = np.repeat(np.arange(len(job.days)), job.days)
        return np.stack([np.log(row - x[files == file].min() + 2) for row, file in zip(x, files, strict=True)])
    low, high = x.min(axis=0), x.max(axis=0)
    return (x - low) / np.where(high > low, high - low, 1)


def transformed(x: np.ndarray, name: str, train: list[int]) -> np.ndarray:
    """A column of an own table by a transform of its own, fitted on some rows."""
    fitted = x[train]
    if name == "log1p":
        return np.log1p(np.maximum(x, 0))
    if name == "signed_log1p":
        return np.sign(x) * np.log1p(np.abs(x))
    if name == "standard":
        return (x - statistics.mean(fitted.tolist())) / (statistics.pstdev(fitted.tolist()) or 1)
    if name == "minmax":
        return (x - fitted.min()) / ((fitted.max() - fitted.min()) or 1)
    if name == "quantile":
        ranks = np.arange(257) / 256
        quantiles = np.quantile(fitted, ranks, method="lower")
        values = np.unique(quantiles)
        return np.interp(x, values, [ranks[quantiles == value].mean() for value in values])
    return x


def ids_of(job: Job, values: Bags, train: Sequence[int], split_rows: Sequence[int]) -> list[list[int]] | None:
    """The ids of a column's values, row by row; None where the column is dropped."""
    cap, threshold = job.get("max_ind_range", None), job.get("frequency_threshold", 1)
    if job.encoding == "hash":
        return [[value % cap for value in bag] for bag in values]
    of_train = job.encoding == "vocabulary"
    occurrences = [value for row in sorted(train if of_train else split_rows) for value in sorted(values[row])]
    counts = Counter(occurrences)
    orders = {"amd_blog": "value", "vocabulary": job.get("vocabulary_order", "frequency")}
    order = orders.get(job.encoding, "first_appearance")
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    ranked = [value for value in ranked if counts[value] >= threshold]
    if of_train and cap is not None:
        ranked = ranked[: cap - 1]
    if order == "value":
        ranked.sort()
    elif order == "first_appearance":
        ranked = [value for value in dict.fromkeys(occurrences) if value in set(ranked)]
    if job.encoding == "amd_blog" and len(counts) > job.get("max_categories", 10_000):
        return None
    first, unknown = {"vocabulary": (1, 0), "torchrec": (2, 1), "torchrec_fixed": (2, 1)}.get(job.encoding, (0, 0))
    table = {value: first + place for place, value in enumerate(ranked)}
    ids = [[table.get(value, unknown) for value in bag] for bag in values]
    if cap is not None and job.encoding.startswith("torchrec"):
        return [[identity % cap for identity in bag] for bag in ids]
    return ids


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
    meaning = ["stratified", *(["time", "group", "time"] if is_own else [])] * (
        not keys["encoding"].startswith("torchrec")
    )
    keys |= maybe("split.method", "auto", "fraction", "random", "scikit_learn", *last_day, *meaning)
    method = keys.get("split.method")
    if method not in (None, "auto", "last_day"):
        keys |= maybe("split.held_out", 0.25, 0.4)
    keys |= {"split.column": "user", "allow_degenerate": "true"} if method == "group" else {}
    return keys | (maybe("split.seed", 3) if method in ("random", "scikit_learn", "group", "stratified") else {})


def drawn_criteo(rng: np.random.Generator, directory: Path) -> tuple[Job, list[str]]:
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
    first, last, distinct = [(10**9, 2 * 10**9, 10**6), (10**9, 10**9 + 9, 9), (-2 * 10**9, 4 * 10**9, 500)][
        rng.integers(3)
    ]
    times = rng.choice(np.linspace(first, last, distinct).astype(int), sum(days)).tolist()
    if job.get("split.method", "auto") == "time" or (job.get("split.method", "auto") == "auto" and rng.integers(2)):
        job.times = times
    lines = []
    for row in range(sum(days)):
        score, price = int(rng.integers(0, 6)), "" if rng.integers(6) == 0 else f"{rng.normal(0, 30):.3f}"
        user, tags = f"u{rng.zipf(1.5) % 17}", [f"t{tag}" for tag in rng.integers(0, 7, rng.integers(0, 4))]
        job.labels.append(int(score >= 3))
        job.dense.append([row, float(price or 0)])
        job.sparse[0].append([value_of(user)])
        job.sparse[1].append([value_of(tag) for tag in tags])
        lines.append(f"{row},{score},{price},{user},{'|'.join(tags)},{times[row]}\n")
    for day, end in enumerate(np.cumsum(days).tolist()):
        part = lines[end - days[day] : end]
        (directory / f"rows_{day}.csv").write_text("".join(["row,score,price,user,tags,ts\n", *part]))
    schema = "label: score >= 3\ndense: [row, price]\nsparse: [user, {column: tags, separator: '|'}]\n"
    schema += "time: {column: ts, format: epoch}\n" if job.times else ""
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
@pytest.mark.parametrize("seed", seeds(8, 36))
@pytest.mark.parametrize("draw", [drawn_criteo, drawn_table])
def test_a_drawn_job(tmp_path: Path, draw: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, draw is drawn_table, 332])
    job, raw = draw(rng, tmp_path)
    overrides = [f"data.{key}={value}" for key, value in job.keys.items()]
    print(f"seed {seed}: {' '.join(overrides)}, days {job.days}")
    chunk = int(rng.integers(2000, 9000))
    manifest = prepare(*raw, *overrides, f"data.path={tmp_path}/out", f"data.chunk_bytes={chunk}")
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
        unknown = {"vocabulary": 0, "torchrec": 1, "torchrec_fixed": 1}.get(job.encoding)
        if unknown == 1 and "max_ind_range" in job.keys:  # ids are taken modulo it: id 1 is of other values, too
            if job.get("frequency_threshold", 1) > 1:
                assert manifest.extra["out_of_vocabulary"] is None
        elif unknown is not None:
            counts = {name: sum(bag.count(unknown) for bag in bags) for name, bags in ids.items()}
            assert manifest.extra["out_of_vocabulary"][split] == counts
    check_encoder(tmp_path, job, transformed, columns)


def check_encoder(directory: Path, job: Job, transformed: np.ndarray, columns: dict[str, Bags]) -> None:
    """All raw rows as new ones have the numbers and ids that the dataset has."""
    if job.encoding == "torchrec":  # it may round ids, and its numbers depend on the file
        return
    encoder = Encoder.load(directory / "out")
    assert "ts" not in encoder.input_columns
    contents = [path.read_bytes() for path in sorted(directory.glob("rows_*" if job.is_own else "day_*"))]
    header = contents[0][: contents[0].index(b"\n") + 1] if job.is_own else b""
    (directory / "new.tsv").write_bytes(header + b"".join(content.removeprefix(header) for content in contents))
    new = read_new_rows(directory / "new.tsv", encoder.shape())
    encoded = encoder.encode(encoder.parse_columns(new.columns, new.name, new.numbers, labelled=True))
    assert encoded.labels.tolist() == job.labels
    if job.encoding != "torchrec_fixed":
        np.testing.assert_allclose(encoded.dense, transformed.reshape(encoded.dense.shape), rtol=3e-6, atol=3e-6)
    bags = dict(zip(load_manifest(directory / "out").ragged, encoded.bags, strict=True))
    ids = {name: [bag.part(row, row + 1).ids.tolist() for row in range(len(job.labels))] for name, bag in bags.items()}
    single = [name for name in columns if name not in bags]
    ids |= {name: [[one] for one in column] for name, column in zip(single, encoded.sparse.T.tolist(), strict=True)}
    assert ids == columns
