"""No output byte changes: datasets and trained parameters against the digests in tests/bytes.json."""

from pathlib import Path

import pytest

from tests.bytes_cases import DATASETS, RUNS, dataset_row, machine, prepare_inputs, read_record, training_row
from tests.once import made_once

# On another kind of CPU, or with another torch: of the first losses, relative. Rounding grows from step to step (of
# mlperf_v2 on an Intel CPU 2e-6 in the fourth and 9e-3 in the seventh), so later ones say nothing.
TOLERANCE, COMPARED_LOSSES = 1e-5, 4
# One of each kind of rows, encoding, split and command; the others vary them.
FAST = {"vocabulary", "vocabulary_gzip_days", "hash", "torchrec_capped", "torchrec_fixed", "dlrm_kaggle"}
FAST |= {"dense_minmax", "sampled", "given_parquet", "csv_shuffled", "parquet", "random_zipf", "trace"}
# These work in several units or tasks, so two processes share the work.
SHARED_BY_TWO = (
    "vocabulary_days",
    "torchrec_capped",
    "csv_shuffled",
    "parquet",
    "sampled_hash",
    "given_criteo_sampled",
)
RECORD_AGAIN = "if the change is meant, run `python -m tests.bytes_cases {}` and say why in the commit"


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw rows of all cases."""
    return made_once(tmp_path_factory, "bytes_inputs", prepare_inputs)


def test_every_case_is_there() -> None:
    record = read_record()
    assert set(record["datasets"]) > FAST
    assert (len(record["datasets"]), len(record["runs"])) == (50, 11)


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else (pytest.mark.slow("bytes"),)) for name in DATASETS]
)
def test_a_dataset_keeps_its_bytes(name: str, inputs: Path, tmp_path: Path) -> None:
    row = dataset_row(name, inputs, tmp_path)
    assert row["digest"] == read_record()["datasets"][name]["digest"], RECORD_AGAIN.format(name)


@pytest.mark.slow("examples")
@pytest.mark.parametrize("name", SHARED_BY_TWO)
def test_two_workers_write_the_same_bytes(name: str, inputs: Path, tmp_path: Path) -> None:
    row = dataset_row(name, inputs, tmp_path, workers=2)
    assert row["digest"] == read_record()["datasets"][name]["digest"], RECORD_AGAIN.format(name)


@pytest.mark.slow("processes")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_keeps_its_losses_and_parameters(name: str, inputs: Path, tmp_path: Path) -> None:
    """To the bit where the digests were recorded on such a machine, else the first losses within a tolerance."""
    record = read_record()
    recorded_machine, current_machine = record["machine"], machine()
    few = [] if recorded_machine == current_machine else [f"train.max_steps={COMPARED_LOSSES}"]
    row, recorded = training_row(name, inputs, tmp_path, *few), record["runs"][name]
    first, expected = (entry["first_losses"][:COMPARED_LOSSES] for entry in (row, recorded))
    message = f"{name}: first losses compared within {TOLERANCE} relative; {RECORD_AGAIN.format(name)}"
    assert first == pytest.approx(expected, rel=TOLERANCE), message
    if recorded_machine == current_machine:
        message = f"{name}: compared bit by bit, since recorded on this kind of machine ({current_machine['cpu']}, "
        message += f"torch {current_machine['torch']}); {RECORD_AGAIN.format(name)}"
        assert row == recorded, message
