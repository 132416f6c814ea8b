"""Drawn logs whose files have times, ids and truth values of many types, against pandas, datetime and Decimal."""

import random
from pathlib import Path

import pytest

from tests.data_prep.conftest import prepare
from tests.extensions.sequences.event_logs import opened
from tests.extensions.sequences.time_oracle import drawn_log, expected_arrays

FAST, ALL = 12, 132
BLOCKS = [range(FAST), *(range(start, start + 20) for start in range(FAST, ALL, 20))]


@pytest.mark.medium
@pytest.mark.parametrize("seeds", [pytest.param(each, marks=[pytest.mark.slow] * (each.start > 0)) for each in BLOCKS])
def test_drawn_logs_are_stored_as_their_values_mean(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        draw, directory = random.Random(seed), tmp_path / str(seed)
        directory.mkdir()
        files, form = drawn_log(draw, directory)
        about = (
            f"seed {seed}: format {form}, {[(each.name, each.users[0], each.times[0], each.truths) for each in files]}"
        )
        raw = ",".join(str(directory / file.name) for file in files)
        arguments = [f"data.raw=[{raw}]", f"data.schema={directory}/log.yaml", f"data.path={directory}/out"]
        chunk = draw.choice(["300", "1MiB"])
        try:
            prepare(*arguments, f"data.chunk_bytes={chunk}", "data.allow_degenerate=true")
        except Exception as error:
            raise AssertionError(about) from error
        _, arrays = opened(directory / "out")
        for name, expected in expected_arrays(files, form).items():
            assert getattr(arrays, name).tolist() == expected, f"{name}, {about}"
