"""Commands on a run of a pretended GPU, with the GPU and with the CPU."""

import json
from pathlib import Path

import pytest

from tests.data_prep import oracle
from tests.pretend_cuda.machine import Machine
from tests.pretend_cuda.runs import command, summary, train

pytestmark = pytest.mark.slow("processes")


@pytest.mark.medium
def test_evaluate_with_tables_as_served(machine: Machine, runs: Path, tmp_path: Path) -> None:
    """FBGEMM's inference operator looks up in tables on the device as on the host."""
    results = {}
    for platform in ("cpu", "cuda"):
        words = [f"run={runs}/cuda/run", "tables=int4", "split=val", f"runtime.platform={platform}"]
        command(machine, "evaluate", tmp_path, *words, f"out={tmp_path}/{platform}.json")
        results[platform] = json.loads((tmp_path / f"{platform}.json").read_text())
    assert results["cuda"] == results["cpu"]


@pytest.mark.medium
def test_two_processes_evaluate(machine: Machine, runs: Path, tmp_path: Path) -> None:
    command(machine, "evaluate", tmp_path, f"run={runs}/cuda/run", "split=val", f"out={tmp_path}/out.json", processes=2)
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["auc"] == pytest.approx(summary(runs / "cuda")["eval"]["auc"], rel=1e-5)


@pytest.mark.medium
def test_recommend(machine: Machine, tmp_path: Path) -> None:
    """Candidates are ranked by the same logits as on the CPU."""
    (tmp_path / "raw.tsv").write_bytes(oracle.make_rows(400, seed=4))
    command(machine, "data_prep.__main__", tmp_path, "data.raw=raw.tsv", "data.path=data")
    train(machine, tmp_path, tmp_path / "data", "cuda", "train.max_steps=3", "eval.split=test")
    results = {}
    for platform in ("cpu", "cuda"):
        words = ["run=run", "candidates=raw.tsv", "top_k=null", f"runtime.platform={platform}"]
        command(machine, "recommend", tmp_path, *words, f"out={platform}.json")
        results[platform] = json.loads((tmp_path / f"{platform}.json").read_text())["ranking"]
    assert len(results["cuda"]) == 400
    assert results["cuda"] == results["cpu"]


@pytest.mark.medium
def test_doctor_sees_the_device(machine: Machine, tmp_path: Path) -> None:
    process = machine.run("app.doctor", "json=true", cwd=tmp_path)
    assert "Pretended GPU, sm_90" in process.stdout, process.stderr


@pytest.mark.medium
def test_bench(machine: Machine, tmp_path: Path) -> None:
    """Lookups and whole steps."""
    words = ["runtime.platform=cuda", "operators=[embedding_bag,step]", "seconds=0.05"]
    command(machine, "bench", tmp_path, *words, "shape.batch_size=32", "shape.most_rows=50", "out=bench.json")
    assert json.loads((tmp_path / "bench.json").read_text())


@pytest.mark.medium
def test_limits_are_not_measured_without_memory(machine: Machine, tmp_path: Path) -> None:
    words = ["runtime.platform=cuda", "operators=[step]", "seconds=0.01"]
    process = machine.run("app.bench", *words, cwd=tmp_path, environment={"PRETEND_CUDA_MEMORY": str(2 << 20)})
    assert (process.returncode, "too little free memory on the GPU" in process.stderr) == (2, True), process.stderr


@pytest.mark.medium
def test_gradients_that_are_not_finite_are_named(machine: Machine, dataset: Path, tmp_path: Path) -> None:
    fault = {"FAULT": "gradients not finite:3"}
    with pytest.raises(AssertionError, match=r"step 3 .*first non-finite value: gradient of"):
        train(machine, tmp_path, dataset, "cuda", environment=fault)


@pytest.mark.medium
def test_an_error_ends_all_processes(machine: Machine, dataset: Path, tmp_path: Path) -> None:
    """Not finite on all, or no memory on one, for which the other would wait for 30 minutes, longer than a test may."""
    with pytest.raises(AssertionError, match="non-finite"):
        train(machine, tmp_path / "all", dataset, "cuda", "optimizer.lr=1e30", processes=2)
    fault = {"FAULT": "process 1 has no memory:3"}
    with pytest.raises(AssertionError, match="out of memory"):
        train(machine, tmp_path / "one", dataset, "cuda", processes=2, environment=fault)
