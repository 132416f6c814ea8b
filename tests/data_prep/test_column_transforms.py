"""A transform for each dense column, fitted on train alone, beside plain NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep import job
from data_prep.dataset.format import load_manifest
from data_prep.encoding import Encoder
from data_prep.verify import verify_dataset
from tests.data_prep.conftest import SPLITS, Capture, load_split, prepare, sums
from tests.data_prep.tables import paths
from tests.error_lines import refused
from tests.oracles.preparation import transformed

ROWS = 300
COLUMNS = ("row", "standard", "minmax", "quantile", "log1p", "signed_log1p", "usual")
TRANSFORMS = ("raw", *COLUMNS[1:6], "signed_log1p")
OWN = ", ".join(f"{{column: {name}, transform: {how}}}" for name, how in zip(COLUMNS[:6], TRANSFORMS, strict=False))
SCHEMA = f"label: label\ndense: [{OWN}, usual]\nsparse: [user]\n"


def drawn() -> NDArray[np.float64]:
    """Numbers [ROWS, N], of which some are missing (0) or repeated."""
    rng = np.random.default_rng(0)
    numbers = rng.lognormal(0, 2, (ROWS, len(COLUMNS))).round(3) * rng.choice([-1, 1, 1, 0], (ROWS, len(COLUMNS)))
    numbers[:, 0] = np.arange(ROWS)
    return numbers


def text(numbers: NDArray[np.float64]) -> str:
    fields = [",".join(repr(x) if x else "" for x in row) for row in numbers.tolist()]
    lines = [f"{row % 2},u{row % 7},{text}" for row, text in enumerate(fields)]
    return "\n".join([f"label,user,{','.join(COLUMNS)}", *lines, ""])


def expected(numbers: NDArray[np.float64], train: NDArray[np.int64]) -> NDArray[np.float64]:
    """The dense features of all rows, by the fit of some."""
    rows = train.tolist()
    return np.stack([transformed(x, how, rows) for x, how in zip(numbers.T, TRANSFORMS, strict=True)], axis=1)


def prepared(directory: Path, *more: str, out: str = "out", schema: str = SCHEMA, content: str = "") -> Any:
    path, content = directory / "rows.csv", content or text(drawn())
    if not path.exists() or path.read_text() != content:
        path.write_text(content)
    return prepare(*paths(directory, schema, out=out), *more)


JOBS = [
    [],
    ["data.split.method=fraction"],
    ["data.encoding=hash", "data.max_ind_range=50"],
    ["data.encoding=hash", "data.max_ind_range=50", "data.split.method=fraction", "data.split.held_out=0.4"],
    ["data.dense_transform=minmax", "data.split.method=fraction"],
]


@pytest.mark.medium
@pytest.mark.parametrize("keys", JOBS[:4])
def test_each_column_has_its_own_transform_fitted_on_train(tmp_path: Path, keys: list[str]) -> None:
    numbers = drawn()
    manifest = prepared(tmp_path, *keys, "data.chunk_bytes=900")
    verify_dataset(tmp_path / "out")
    parts = [load_split(tmp_path / "out", split)[1] for split in SPLITS]
    train, *_ = places = [np.round(part[:, 0]).astype(int) for part in parts]
    assert 0 < len(train) < ROWS == sum(map(len, places))
    for part, rows in zip(parts, places, strict=True):
        np.testing.assert_allclose(part, expected(numbers, train)[rows], rtol=1e-6, atol=1e-6)
    assert list(manifest.encoding["dense_fits"]) == ["standard", "minmax", "quantile"]
    assert manifest.encoding["table"]["transforms"] == [[*pair] for pair in zip(COLUMNS[:6], TRANSFORMS, strict=False)]
    encoder = Encoder.load(tmp_path / "out")
    columns = {name: numbers[:, place].tolist() for place, name in enumerate(COLUMNS)} | {"user": ["u"] * ROWS}
    dense = encoder.encode(encoder.parse_columns(columns, "new")).dense
    np.testing.assert_allclose(dense, expected(numbers, train), rtol=1e-6, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("keys", JOBS)
def test_bytes_depend_on_no_workers_and_budget_and_fits_on_no_chunks(tmp_path: Path, keys: list[str]) -> None:
    first = prepared(tmp_path, *keys, "data.chunk_bytes=1000", out="one")
    for workers, budget in ((2, "1GiB"), (4, "2GiB")):
        more = (f"data.workers={workers}", f"data.memory_budget={budget}", "data.chunk_bytes=1000")
        prepared(tmp_path, *keys, *more, "data.overwrite=true", out="several")
        assert sums(tmp_path / "several") == sums(tmp_path / "one")
        assert load_manifest(tmp_path / "several").digest == first.digest
    if "data.split.method=fraction" in keys:  # a random split follows the chunks
        whole = prepared(tmp_path, *keys, out="whole")
        assert whole.encoding["dense_fits"] == first.encoding["dense_fits"]


@pytest.mark.medium
def test_a_stopped_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path, "data.chunk_bytes=900", out="whole")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def start_and_stop() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(job, "workers_to_encode", stop)
            with pytest.raises(KeyboardInterrupt):
                prepared(tmp_path, "data.chunk_bytes=900")

    start_and_stop()
    chunks = tmp_path / "out/.work/chunks"
    written = sorted(chunks.glob("*.sorted.npy"))
    assert len(written) > 3
    written[0].write_bytes(written[0].read_bytes()[:-1] + b"x")
    kept = written[1].stat().st_mtime_ns
    start_and_stop()
    assert written[1].stat().st_mtime_ns == kept
    prepared(tmp_path, "data.chunk_bytes=900")
    assert sums(tmp_path / "out") == sums(tmp_path / "whole")


@pytest.mark.medium
def test_lost_numbers_are_counted(tmp_path: Path, capsys: Capture) -> None:
    numbers = drawn()
    lost = (numbers[:, COLUMNS.index("log1p")] < 0).sum()
    prepared(tmp_path)
    error = capsys.readouterr().err
    assert f"negative numbers are 0 by log1p: {lost} of log1p; transform: signed_log1p for them keeps them\n" in error
    others = (numbers[:, COLUMNS.index("usual")] < 0).sum()
    prepared(tmp_path, "data.dense_transform=log1p", out="other")
    line = f"negative numbers are 0 by log1p: {others} of usual; data.dense_transform=signed_log1p keeps them\n"
    assert line in capsys.readouterr().err


def test_constant_columns_and_extreme_numbers_stay_finite(tmp_path: Path) -> None:
    lines = [f"{row % 2},u,1e308,{'1e-320' if row else '1e308'},7" for row in range(ROWS)]
    for name in ("standard", "minmax", "quantile"):
        dense = "".join(f"  - {{column: {column}, transform: {name}}}\n" for column in "abc")
        schema = f"label: label\ndense:\n{dense}sparse: [user]\n"
        content = "\n".join(["label,user,a,b,c", *lines, ""]).replace("1e308", "8e307")
        prepared(tmp_path, "data.split.method=fraction", out=name, schema=schema, content=content)
        verify_dataset(tmp_path / name)
        numbers = load_split(tmp_path / name, "test")[1]
        assert np.isfinite(numbers).all()
        assert len(np.unique(numbers[:, 2])) == 1


def test_another_transform_is_another_dataset(tmp_path: Path) -> None:
    prepared(tmp_path)
    other = SCHEMA.replace("transform: minmax", "transform: standard")
    refused("holds another dataset", prepared, tmp_path, schema=other)
