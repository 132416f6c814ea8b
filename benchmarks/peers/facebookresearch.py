"""facebookresearch/dlrm's two programs from their own files, unmodified, timed by the lines that they print.

They run in a copy of the repository, as dlrm_s_pytorch.py writes a log beside itself. Training seconds are counted from
the line at the start of an epoch, or after an evaluation, to the line with the number of steps done.
"""

import codecs
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.curve import Point, Task
from benchmarks.peers.rows import DENSE_ARCH, DIM, EPS, NUM_DENSE, OVER_ARCH, load_tables


@dataclass(frozen=True)
class Program:
    """A program's file, and patterns of its lines at the start, after a number of steps, and after an evaluation."""

    file: str
    begins: str
    trained: str
    evaluated: str


DLRM_S = Program(
    "dlrm_s_pytorch.py", r'"epoch_start"', r"Finished training it (\d+)/", r"recall .* auc (\d\.\d+), best auc"
)
DLRM_MAIN = Program(
    "torchrec_dlrm/dlrm_main.py",
    r"^Epoch 0: +0%",
    r"Total number of iterations: (\d+)",
    r"AUROC over val set: (\d\.\d+)",
)


class Line(NamedTuple):
    """A line and when its first and its last bytes came, s."""

    came: float
    ended: float
    text: str


def dlrm_s_pytorch(task: Task) -> list[Point]:
    """dlrm_s_pytorch.py, its loader for large batches, its AUC by scikit-learn to four decimals."""
    bottom = "-".join(map(str, (NUM_DENSE, *DENSE_ARCH)))
    top = "-".join(map(str, OVER_ARCH))
    return _run(
        task,
        DLRM_S,
        [
            f"--arch-sparse-feature-size={DIM}",
            f"--arch-mlp-bot={bottom}",
            f"--arch-mlp-top={top}",
            "--loss-function=bce",
            "--optimizer=adagrad",
            f"--learning-rate={task.rate}",
            "--data-generation=dataset",
            "--data-set=terabyte",
            "--memory-map",
            "--mlperf-logging",
            f"--raw-data-file={task.work / 'dlrm_s/day'}",
            f"--processed-data-file={task.work / 'dlrm_s/none.npz'}",
            f"--mini-batch-size={task.batch}",
            "--test-mini-batch-size=4096",
            f"--numpy-rand-seed={task.seed}",
            f"--print-freq={task.steps()}",
            f"--test-freq={task.steps()}",
        ],
    )


def torchrec_dlrm_main(task: Task) -> list[Point]:
    """torchrec_dlrm/dlrm_main.py, its in-memory datapipe, its own sharding plan and pipeline."""
    return _run(
        task,
        DLRM_MAIN,
        [
            "--embedding_dim",
            str(DIM),
            "--dense_arch_layer_sizes",
            ",".join(map(str, DENSE_ARCH)),
            "--over_arch_layer_sizes",
            ",".join(map(str, OVER_ARCH)),
            "--num_embeddings_per_feature",
            ",".join(map(str, load_tables(task.work))),
            "--adagrad",
            "--eps",
            str(EPS),
            "--learning_rate",
            str(task.rate),
            "--seed",
            str(task.seed),
            "--in_memory_binary_criteo_path",
            str(task.work / "torchrec"),
            "--batch_size",
            str(task.batch),
            "--test_batch_size",
            "4096",
            "--validation_freq_within_epoch",
            str(task.steps()),
            "--limit_test_batches",
            "1",
        ],
    )


def _run(task: Task, program: Program, arguments: list[str]) -> list[Point]:
    assert task.dlrm is not None
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "dlrm"
        shutil.copytree(task.dlrm, copy, ignore=shutil.ignore_patterns(".git"))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(task.threads),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
        }
        command = [sys.executable, "-u", str(copy / program.file), *arguments]
        with subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            last: deque[str] = deque(maxlen=20)
            points = read_points(program, _lines(process.stdout.fileno(), last), task.batch)
        if process.returncode or len(points) != task.evaluations:
            raise SystemExit("\n".join(last) or f"{program.file}: no output")
    return points


def _lines(descriptor: int, last: deque[str]) -> Iterator[Line]:
    """Each line of a pipe, also of a progress bar."""
    rest, came = "", 0.0
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    while chunk := os.read(descriptor, 1 << 16):
        now = time.perf_counter()
        came = came if rest else now
        *lines, rest = re.split(r"[\r\n]+", rest + decode(chunk))
        for text in lines:
            last.append(text)
            yield Line(came, now, text)
            came = now


def read_points(program: Program, lines: Iterable[Line], batch: int) -> list[Point]:
    """The evaluations in a program's output, each after further steps; repeated ones are left out."""
    points: list[Point] = []
    began, seconds, steps = None, 0.0, 0
    for line in lines:
        if not points and began is None and re.search(program.begins, line.text):
            began = line.came
        elif began is not None and (match := re.search(program.trained, line.text)):
            steps, seconds, began = int(match[1]), seconds + line.ended - began, None
        elif match := re.search(program.evaluated, line.text):
            if not points or steps * batch > points[-1].samples:
                points.append(Point(steps * batch, seconds, float(match[1])))
            began = line.ended
    return points
