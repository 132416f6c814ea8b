"""A job on a log of events that is killed again and again (tests/data_prep/test_kills.py)."""

import random
from pathlib import Path

import pytest

from extensions.sequences import preparation
from tests.data_prep.mirror import Mirror
from tests.data_prep.tables import write
from tests.data_prep.test_kills import Kind, kill_again_and_again


def write_events(directory: Path) -> None:
    draw = random.Random(1)
    columns = {name: [draw.randint(0, size) for _ in range(3000)] for name, size in (("user", 60), ("item", 40))}
    columns |= {"time": [draw.randint(0, 300) for _ in range(3000)], "score": [draw.randint(0, 5) for _ in range(3000)]}
    write(directory / "log.parquet", columns, row_group_size=200)
    actions = "actions: {liked: {score: '>= 4'}, seen: {score: '< 4'}}\nlabel: liked\n"
    (directory / "schema.yaml").write_text(f"user: user\ntime: time\nitem: item\n{actions}")


@pytest.mark.slow("examples")
def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: Mirror) -> None:
    kind = Kind(write_events, "data.raw={0}/log.parquet data.schema={0}/schema.yaml data.chunk_bytes=20000")
    kill_again_and_again("events", kind, preparation.__name__, tmp_path, monkeypatch, mirror)
