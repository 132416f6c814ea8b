"""One job, killed ten times at random moments, ends with the same bytes."""

import multiprocessing
import shutil
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep import pipeline
from data_prep.engine.executor import start_fork_server
from data_prep.pipeline import run_stages
from data_prep.verify import verify_dataset
from tests.data_prep import oracle
from tests.data_prep.conftest import config, sums

KILLS = 10


def prepare(arguments: list[str], cpu_seconds: float) -> None:
    """Preprocess; so much CPU time into the stages the kernel ends this process, which has no handler for that."""

    def run_doomed(*stage_arguments: Any) -> Any:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        return run_stages(*stage_arguments)

    vars(pipeline)["run_stages"] = run_doomed
    pipeline.preprocess(config(*arguments))


def start(arguments: list[str], cpu_seconds: float) -> BaseProcess:
    process = multiprocessing.get_context("forkserver").Process(target=prepare, args=(arguments, cpu_seconds))
    process.start()
    process.join()
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    "choices",
    [
        ["data.encoding=vocabulary"],
        ["data.encoding=torchrec_fixed", "data.max_ind_range=100", "data.multi_hot.sizes=mlperf_v2"],
    ],
    ids=["vocabulary", "shuffled and multi-hot"],
)
def test_killed_ten_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choices: list[str]) -> None:
    start_fork_server()
    (tmp_path / "rows").write_bytes(oracle.make_rows(2000, seed=3))
    arguments = [f"data.raw={tmp_path}/rows", "data.chunk_bytes=20000", *choices]
    seconds = []

    def run_timed(*stage_arguments: Any) -> Any:
        begin = time.process_time()
        result = run_stages(*stage_arguments)
        seconds.append(time.process_time() - begin)
        return result

    monkeypatch.setattr(pipeline, "run_stages", run_timed)
    for name in ("first", "whole"):  # the first compiles
        pipeline.preprocess(config(*arguments, f"data.path={tmp_path}/{name}"))
    arguments.append(f"data.path={tmp_path}/killed")
    shares = np.random.default_rng(KILLS).dirichlet(np.full(KILLS, 0.5))
    limits = [max(0.001, share * seconds[-1] / 2) for share in shares]  # together half of what the stages take
    while limits:
        end = start(arguments, limits[-1]).exitcode
        assert end in (-signal.SIGPROF, 0)
        if end:
            limits.pop()
        else:  # done before that, since the machine has become faster: another job is killed
            assert sums(tmp_path / "killed") == sums(tmp_path / "whole")
            shutil.rmtree(tmp_path / "killed")
    assert not (tmp_path / "killed" / "manifest.json").exists()
    assert start(arguments, 1e6).exitcode == 0
    assert sums(tmp_path / "killed") == sums(tmp_path / "whole")
    assert not (tmp_path / "killed" / ".work").exists()
    verify_dataset(tmp_path / "killed")
