"""Make the golden run again: python -m tests.golden.make, from the top of the repository (`make golden`).

A tiny dataset and the record of a run on it, as `python -m app.train` leaves it, without its checkpoints: what
`app.verify` replays on any machine. Make it again only where training is meant to come out otherwise, and say why in
the commit.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from common.extensions import KeyGroup, rows_of_extensions
from tests.app.datasets import write_dataset

GOLDEN = Path("tests/golden")
KEPT = ("config.yaml", "manifest.json", "metrics.jsonl", "summary.json", "results.csv", "curves.json")
OVERRIDES = [f"data.path={GOLDEN}/data", "run.name=golden", "model.dense_arch=[32,16]", "model.over_arch=[32,1]"]
OVERRIDES += ["train.global_batch_size=64", "train.max_steps=24", "train.eval_every_steps=10"]
OVERRIDES += ["train.log_every_steps=1", "runtime.platform=cpu", "runtime.num_threads=1", "record.tensorboard=false"]
OVERRIDES += ["baselines=false"]


def main() -> None:
    """Write tests/golden/data and tests/golden/run."""
    if not (GOLDEN / "make.py").exists():
        raise SystemExit("start it from the top of the repository")
    for name in ("data", "run"):
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
    write_dataset(GOLDEN / "data", {"train": 640, "val": 128}, shard_rows=400, seed=6)
    # Nothing of the environment of who makes it, but what decides the bits.
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "app.train", *OVERRIDES, f"run.dir={scratch}/run"], env=environment, check=True
        )
        (GOLDEN / "run").mkdir()
        config = Path(scratch) / "run/config.yaml"
        groups = yaml.safe_load(config.read_text())
        for group in rows_of_extensions(KeyGroup):  # the core's tests replay the run without extensions, too
            groups.pop(group.name, None)
            groups["data"].pop(group.name, None)
        config.write_text(yaml.safe_dump(groups, sort_keys=False))
        for name in KEPT:
            text = (Path(scratch) / "run" / name).read_text()
            (GOLDEN / "run" / name).write_text(text.replace(f"{scratch}/run", str(GOLDEN / "run")))


if __name__ == "__main__":
    main()
