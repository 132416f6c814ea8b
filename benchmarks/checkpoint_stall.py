"""How long training waits for a checkpoint: written before the next step, and behind training's back.

    python -m benchmarks.checkpoint_stall [--scale 1.0] [--rounds 5] [--threads 1] [--optimizer adagrad]
                                          [--directory DIR] [--out FILE]

Kaggle shape (26 tables, dimension 16, batch 2048), all tables' rows times `--scale`. Round after round, the real loop
runs the same steps three times in turn, with one checkpoint at a quarter of them:

  none          no checkpoint
  synchronous   checkpoint.asynchronous=false
  asynchronous  checkpoint.asynchronous=true

`stall` is the time that the loop stands still in the save. `delay` is how much longer than `none` the steps took in
all, in the same round: with an asynchronous save it holds the stall and what the writing thread takes from the steps
(one core has nothing to give). `write` is the time until the checkpoint was whole. Medians over rounds. The number of
steps is chosen so that they last about twice as long as a synchronous save. Checkpoints go to `--directory`: give one
on the disk that you want to know about.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.saver import Saver, num_bytes
from app.config.app_config import CONFIG_DIR, AppConfig
from app.config.train import RuntimeConfig
from app.data.batch import Batch
from app.runtime import platform
from app.training import session
from app.training.checkpointer import checkpoint_state
from app.training.state import RunState
from benchmarks import training_loop
from benchmarks.result_file import write_result
from common.compose import compose_config

BATCH = 2048
KINDS = ("none", "synchronous", "asynchronous")


class OneCheckpoint(training_loop.NotMeasured):
    """In place of the loop's checkpointer: saves at one step, or never."""

    def __init__(self, train_session: session.Session, saver: Saver, step: int | None) -> None:
        self.stall = 0.0
        self._session, self._saver, self._step = train_session, saver, step

    def due(self, step: int) -> bool:
        """Whether it is that step."""
        return step == self._step

    def save(self, state: RunState) -> None:
        """Save, and note how long the loop waits; not at the end of the run."""
        if self.due(state.step):
            began, train_session = time.perf_counter(), self._session
            content = checkpoint_state(train_session, state, {})
            self._saver.save(state.step, train_session.model, train_session.optimizer, content, best=False)
            self.stall += time.perf_counter() - began


def measure_once(
    train_session: session.Session, directory: Path, kind: str, steps: int, batches: Iterator[Batch]
) -> dict[str, float]:
    """Run the loop for `steps` steps with one checkpoint of that kind; seconds."""
    saver = Saver(directory, 1, kind == "asynchronous", train_session.runtime.local_world_size)
    checkpointer = OneCheckpoint(train_session, saver, None if kind == "none" else steps // 4)
    took = training_loop.time_loop(train_session, steps, batches, checkpointer) * steps
    saver.wait()
    write_seconds = [seconds for _, seconds in saver.finished()]
    saver.close()
    return {"loop": took, "stall": checkpointer.stall, "write": write_seconds[0] if write_seconds else 0.0}


def measure(train_session: session.Session, directory: Path, rounds: int) -> dict[str, Any]:
    """Rounds in turn; the first one warms up."""
    batches = training_loop.stream(train_session)
    warm = [measure_once(train_session, directory, kind, 40, batches) for kind in KINDS]
    steps = max(40, int(2 * warm[1]["stall"] / (warm[0]["loop"] / 40)))
    results = []
    for _ in range(rounds):
        figures = {kind: measure_once(train_session, directory, kind, steps, batches) for kind in KINDS}
        for figure in figures.values():
            figure["delay"] = figure["loop"] - figures["none"]["loop"]
        results.append(figures)
    medians = {
        kind: {key: float(np.median([one[kind][key] for one in results])) for key in ("stall", "delay", "write")}
        for kind in KINDS[1:]
    }
    ratios = {
        key: float(np.median([one["asynchronous"][key] / one["synchronous"][key] for one in results]))
        for key in ("stall", "delay")
    }
    tensors = {"model": train_session.model.state_dict(), "optimizer": train_session.optimizer.state_dict()}
    return {
        "bytes": num_bytes(tensors),
        "steps a round": steps,
        "seconds": medians,
        "asynchronous / synchronous": ratios,
        "rounds": results,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the tables' rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", default="adagrad")
    parser.add_argument("--directory", type=Path, help="where checkpoints go; default: the temporary directory")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    training_loop.KAGGLE_TABLES[:] = [max(3, int(n * arguments.scale)) for n in training_loop.KAGGLE_TABLES]
    runtime = platform.start(RuntimeConfig(num_threads=arguments.threads), seed=0, deterministic=False)
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        manifest = training_loop.write_rows(Path(scratch))
        overrides = [f"optimizer={arguments.optimizer}", f"train.global_batch_size={BATCH}", f"data.path={scratch}"]
        config = compose_config(AppConfig, CONFIG_DIR, overrides)
        result = measure(session.build(config, runtime, Path(scratch), manifest), Path(directory), arguments.rounds)
    platform.stop()
    print("| checkpoint | GiB | stall s | delay s | written after s |")
    print("|---|---|---|---|---|")
    for kind, seconds in result["seconds"].items():
        print(
            f"| {kind} | {result['bytes'] / 2**30:.2f} | {seconds['stall']:.3f} | {seconds['delay']:.3f} "
            f"| {seconds['write']:.3f} |"
        )
    write_result(arguments, result)


if __name__ == "__main__":
    main()
