"""The encodings that repeat other programs: against their golden arrays, and against TorchRec's own functions."""

import numpy as np
import pytest
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, MinMaxScaler

from common.errors import UserError
from data_prep.arrange import legacy_permutation
from data_prep.encode import Encoder
from data_prep.format import load_manifest
from data_prep.pipeline import preprocess
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, load_split, run, sums


def golden_days(real_rows, directory):
    """The days of the golden arrays: 800, 800 and 399 rows."""
    lines = real_rows.read_bytes().splitlines(keepends=True)
    for day, (start, stop) in enumerate(((0, 800), (800, 1600), (1600, 1999))):
        (directory / f"day_{day}").write_bytes(b"".join(lines[start:stop]))
    return f"data.raw={directory}"


@pytest.mark.parametrize("chunk_bytes", [20_000, 10**7])
def test_torchrec_golden(tmp_path, real_rows, shared, chunk_bytes):
    golden = np.load(shared / "golden" / "torchrec_criteo_tiny.npz")
    raw = golden_days(real_rows, tmp_path)
    root = tmp_path / "out"
    overrides = ["data.encoding=torchrec", "data.frequency_threshold=3", f"data.chunk_bytes={chunk_bytes}"]
    preprocess(config(raw, f"data.path={root}", *overrides))
    labels, dense, sparse = load_split(root, "train")
    for found, kind in ((labels[:, None], "labels"), (dense, "dense"), (sparse, "sparse")):
        expected = np.concatenate([golden[f"shuffle_n2_day{day}_{kind}"] for day in (0, 1)])
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    held_out = [np.concatenate(pair) for pair in zip(load_split(root, "val"), load_split(root, "test"), strict=True)]
    for found, kind in zip(held_out, ("labels", "dense", "sparse"), strict=True):
        np.testing.assert_array_equal(found.reshape(399, -1), golden[f"shuffle_n2_day2_{kind}"])
    assert len(load_split(root, "val")[0]) == 200
    verify_dataset(root)


@pytest.mark.parametrize("threshold", [0, 2, 3])
def test_torchrec_contiguous_ids(tmp_path, real_rows, shared, threshold):
    """Before its shuffle: undo ours, which `legacy_permutation` gives."""
    golden = np.load(shared / "golden" / "torchrec_criteo_tiny.npz")
    raw = golden_days(real_rows, tmp_path)
    root = tmp_path / "out"
    overrides = ["data.encoding=torchrec_fixed", f"data.frequency_threshold={threshold}"]
    manifest = preprocess(config(raw, f"data.path={root}", *overrides))
    sparse = load_split(root, "train")[2]
    in_order = np.empty_like(sparse)
    in_order[legacy_permutation(1600, seed=0)] = sparse
    expected = [golden[f"contig_t{threshold}_day{day}"] for day in range(3)]
    np.testing.assert_array_equal(in_order, np.concatenate(expected[:2]))
    np.testing.assert_array_equal(np.concatenate([load_split(root, s)[2] for s in ("val", "test")]), expected[2])
    largest = np.concatenate(expected).max(axis=0)
    assert list(manifest.num_embeddings.values()) == (largest + 1).tolist()
    unknown = manifest.extra["out_of_vocabulary"]
    for column, feature in enumerate(manifest.schema["sparse"]):
        found = sum(unknown[split][feature] for split in ("train", "val", "test"))
        assert found == (np.concatenate(expected)[:, column] == 1).sum()


def test_the_permutation_is_torchrec_s(shared):
    golden = np.load(shared / "golden" / "torchrec_criteo_tiny.npz")
    np.testing.assert_array_equal(legacy_permutation(1600, seed=0), golden["shuffle_perm_n2"])
    # told of the last day's rows as well, TorchRec mixes as many rows of zeros into the train split
    padded = np.zeros((1999, 13), np.float32)
    padded[:1600] = np.concatenate([golden["day0_dense"], golden["day1_dense"]])
    mixed = np.concatenate([golden["shuffle_n3_day0_dense"], golden["shuffle_n3_day1_dense"]])
    np.testing.assert_array_equal(padded[legacy_permutation(1999, seed=0)][:1600], mixed)


def test_the_permutation_on_disk_is_the_one_in_memory(tmp_path):
    on_disk = legacy_permutation(5000, 3, tmp_path / "order")
    np.testing.assert_array_equal(on_disk, legacy_permutation(5000, 3))
    rows = np.arange(10_000).reshape(5000, 2)
    np.random.seed(3)  # noqa: NPY002
    np.random.shuffle(rows)  # noqa: NPY002
    np.testing.assert_array_equal(rows[:, 0] // 2, on_disk)


def awkward_day(rows, seed, edge):
    """Empty fields, negatives, and, if `edge`, integers at int32's ends."""
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(rows):
        integers = [str(rng.integers(-5, 1000)) for _ in range(13)]
        for column in range(13):
            if rng.integers(4) == 0:
                integers[column] = ""
        if edge and row % 7 == 0:
            integers[row % 13] = str((2**31 - 1, -(2**31), -(2**31) + 1)[row % 3])
        values = [f"{int(rng.integers(0, 12)) * 357913941 % 2**32:08x}" for _ in range(26)]
        values = ["" if rng.integers(6) == 0 else value for value in values]
        lines.append("\t".join([str(rng.integers(2)), *integers, *values]))
    return ("\n".join(lines) + "\n").encode()


def run_torchrec(criteo, directory, days, threshold):
    """Its three steps; the arrays of every day."""
    utils = criteo.BinaryCriteoUtils
    for name in ("npy", "contig", "shuffled"):
        (directory / name).mkdir()
    rows = {}
    for day in range(days):
        files = [str(directory / "npy" / f"day_{day}_{kind}.npy") for kind in ("dense", "sparse", "labels")]
        utils.tsv_to_npys(str(directory / f"day_{day}"), *files)
        if day < days - 1:  # as TorchRec's own script: the last day is not counted, for it is not shuffled
            rows[day] = len(np.load(files[0]))
    files = [str(directory / "npy" / f"day_{day}_sparse.npy") for day in range(days)]
    utils.sparse_to_contiguous(files, str(directory / "contig"), threshold, output_file_suffix=".npy")
    utils.shuffle(str(directory / "npy"), str(directory / "contig"), str(directory / "shuffled"), rows, days=days)
    return [
        [np.load(directory / "shuffled" / f"day_{day}_{kind}.npy") for kind in ("labels", "dense", "sparse")]
        for day in range(days)
    ]


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize(("edge", "threshold"), [(False, 0), (False, 3), (True, 0)])
def test_torchrec_itself_on_awkward_days(tmp_path, criteo, edge, threshold):
    for day, rows in enumerate((150, 90, 61)):
        (tmp_path / f"day_{day}").write_bytes(awkward_day(rows, day, edge))
    expected = run_torchrec(criteo, tmp_path, 3, threshold)
    overrides = ["data.encoding=torchrec", f"data.frequency_threshold={threshold}", "data.chunk_bytes=7000"]
    preprocess(config(f"data.raw={tmp_path}/day_?", f"data.path={tmp_path}/out", *overrides))
    train = [np.concatenate(pair) for pair in zip(expected[0], expected[1], strict=True)]
    for found, wanted in zip(load_split(tmp_path / "out", "train"), train, strict=True):
        assert found.tobytes() == wanted.reshape(found.shape).astype(found.dtype).tobytes()
    held_out = [
        np.concatenate(pair) for pair in zip(*(load_split(tmp_path / "out", s) for s in ("val", "test")), strict=True)
    ]
    for found, wanted in zip(held_out, expected[2], strict=True):
        assert found.tobytes() == wanted.reshape(found.shape).astype(found.dtype).tobytes()


def test_ids_above_2_to_the_24_are_rounded_as_torchrec_rounds_them(tmp_path, monkeypatch):
    """Ids forced upwards: the table begins near 2^24, as if 16 million values had come before."""
    from dataclasses import replace

    from data_prep import pipeline
    from data_prep.choices import Encoding
    from data_prep.rules import RULES

    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(300, seed=day))
    results = {}
    for encoding in (Encoding.torchrec, Encoding.torchrec_fixed):
        monkeypatch.setitem(RULES, encoding, replace(RULES[encoding], first_id=2**24 - 5))
        root = tmp_path / encoding.value
        manifest = pipeline.preprocess(
            config(f"data.raw={tmp_path}/day_?", f"data.path={root}", f"data.encoding={encoding.value}")
        )
        results[encoding] = [load_split(root, split)[2] for split in ("train", "val", "test")]
        verify_dataset(root)
        assert max(manifest.num_embeddings.values()) >= results[encoding][0].max() + 1
    rounded, exact = results[Encoding.torchrec], results[Encoding.torchrec_fixed]
    assert exact[0].max() > 2**24 + 10
    assert (exact[0] != rounded[0]).any()
    np.testing.assert_array_equal(rounded[0], exact[0].astype(np.float32).astype(np.int32))
    np.testing.assert_array_equal(rounded[1], exact[1])
    np.testing.assert_array_equal(rounded[2], exact[2])


def test_dlrm_kaggle_golden(tmp_path, real_rows, shared):
    golden = np.load(shared / "golden" / "fb_kaggle_tiny.npz")
    root = tmp_path / "out"
    manifest = preprocess(config(f"data.raw={real_rows}", f"data.path={root}", "data.encoding=dlrm_kaggle"))
    assert list(manifest.num_embeddings.values()) == golden["counts"].tolist()
    for column, feature in enumerate(manifest.schema["sparse"]):
        values = np.load(root / "vocab" / f"{feature}.npy")
        np.testing.assert_array_equal(values.view(np.int32), golden[f"dict_{column}"])
    for split in ("train", "val", "test"):
        labels, dense, sparse = load_split(root, split)
        np.testing.assert_array_equal(labels, golden[f"{split}_y"])
        np.testing.assert_array_equal(sparse, golden[f"{split}_X_cat"])
        wanted = np.log(golden[f"{split}_X_int"].astype(np.float32) + 1)
        np.testing.assert_array_equal(dense, wanted)
    # the first batch went through torch.log, which may differ from NumPy's in the last bit
    np.testing.assert_allclose(load_split(root, "train")[1][:128], golden["train_b0_X"], rtol=2.5e-7)
    np.testing.assert_array_equal(load_split(root, "train")[2][:128].T, golden["train_b0_idx"])
    encoder = Encoder.load(root)
    encoded = encoder.encode(encoder.parse(real_rows.read_bytes(), "sample"))
    np.testing.assert_array_equal(encoded.sparse, golden["X_cat_int64"])
    np.testing.assert_array_equal(encoded.dense, golden["X_int_log1p_f32"])
    verify_dataset(root)


def test_amd_blog_equals_scikit_learn(tmp_path, real_rows, monkeypatch):
    from dataclasses import replace

    from data_prep.choices import Encoding
    from data_prep.rules import RULES

    blog = RULES[Encoding.amd_blog]
    assert blog.max_categories == 10_000
    monkeypatch.setitem(RULES, Encoding.amd_blog, replace(blog, max_categories=1_000))
    root = tmp_path / "out"
    manifest = preprocess(config(f"data.raw={real_rows}", f"data.path={root}", "data.encoding=amd_blog"))
    labels, dense, sparse = oracle.parse(real_rows.read_bytes())
    dense = np.where(dense == oracle.MISSING, 0, dense)
    kept = [column for column in range(26) if len(np.unique(sparse[:, column])) <= 1_000]
    assert 10 < len(kept) < 26
    assert manifest.schema["sparse"] == [f"cat_{column}" for column in kept]
    ids = np.stack([LabelEncoder().fit_transform([f"{v:08x}" for v in sparse[:, c]]) for c in kept], axis=1)
    scaled = MinMaxScaler().fit_transform(dense.astype(np.float64)).astype(np.float32)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=42)
    for split, rows in (("train", train), ("test", test), ("val", [])):
        found = load_split(root, split)
        np.testing.assert_array_equal(found[0], labels[rows])
        np.testing.assert_array_equal(found[1], scaled[rows].reshape(-1, 13))
        np.testing.assert_array_equal(found[2], ids[rows].reshape(-1, len(kept)))
    assert list(manifest.num_embeddings.values()) == (ids.max(axis=0) + 1).tolist()
    encoder = Encoder.load(root)
    encoded = encoder.encode(encoder.parse(real_rows.read_bytes(), "sample"))
    np.testing.assert_array_equal(encoded.sparse, ids)
    np.testing.assert_array_equal(encoded.dense, scaled)
    verify_dataset(root)


@pytest.mark.parametrize("encoding", ["torchrec", "dlrm_kaggle", "amd_blog"])
def test_workers_and_chunks_do_not_change_the_rows(tmp_path, encoding):
    for day in range(2):
        (tmp_path / f"day_{day}").write_bytes(oracle.make_rows(400, seed=day))
    arguments = [f"data.raw={tmp_path}/day_?", f"data.encoding={encoding}"]
    preprocess(config(*arguments, f"data.path={tmp_path}/one", "data.chunk_bytes=10000"))
    process = run(*arguments, f"data.path={tmp_path}/two", "data.chunk_bytes=10000", "data.workers=3")
    assert process.returncode == 0, process.stderr
    assert len(load_manifest(tmp_path / "one").splits["train"].shards) > 2
    assert sums(tmp_path / "two") == sums(tmp_path / "one")
    preprocess(config(*arguments, f"data.path={tmp_path}/whole"))
    for split in ("train", "val", "test"):
        for found, wanted in zip(
            load_split(tmp_path / "whole", split), load_split(tmp_path / "one", split), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.encoding=dlrm_kaggle", "data.max_ind_range=9"],
        ["data.encoding=amd_blog", "data.frequency_threshold=3"],
        ["data.encoding=amd_blog", "data.split.method=random"],
        ["data.encoding=torchrec", "data.vocabulary_order=value"],
    ],
)
def test_choices_that_an_encoding_does_not_leave(tmp_path, overrides):
    (tmp_path / "rows.tsv").write_bytes(oracle.make_rows(20, seed=0))
    with pytest.raises(UserError, match=overrides[1].split("=")[0]):
        preprocess(config(f"data.raw={tmp_path}/rows.tsv", f"data.path={tmp_path}/out", *overrides))
