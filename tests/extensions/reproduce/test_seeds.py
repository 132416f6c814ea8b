"""Which arguments a reproduction takes, and its jobs of a Slurm that is played."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from app.config import CONFIG_DIR, AppConfig
from common.compose import compose_config
from common.documents import encode
from common.errors import UserError
from extensions.reproduce.convergence import check_convergence
from extensions.reproduce.documents import Reproduction, read_reproduction
from extensions.reproduce.seeds import (
    changed_keys,
    figures_of_test,
    seeds_of,
    submit,
    training_arguments,
    with_copied_recipe,
)
from tests.extensions.reproduce.runs import write_seeds, write_test
from tests.extensions.reproduce.test_figures import document

SBATCH = """#!/bin/bash
echo "$@" >> sbatch_words
number=$(wc -l < sbatch_words)
echo "$((100 + number));cluster"
"""
SQUEUE = '#!/bin/bash\ncase "$*" in *seed_2*) cat queued 2>/dev/null ;; esac\nexit 0\n'


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("train.seed=3", "each run has its own"),
        ("+train.seed=3", "each run has its own"),
        ("run.dir=x", "out=DIR"),
        ("run.name=x", "named by their seeds"),
        ("checkpoint.resume=never", "give another out=DIR"),
        ("checkpoint.overwrite=true", "nothing is overwritten"),
    ],
)
def test_what_each_run_has_of_its_own_is_refused(argument: str, words: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(argument)}: not of a reproduction: .*{words}"):
        training_arguments(["recipe=quickstart", argument])


@pytest.mark.parametrize("key", ["train.seed", "seeds"])
def test_a_files_own_seed_is_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{key}: 3\ntrain.epochs: 2\n")
    with pytest.raises(UserError, match=f"mine.yaml: has {re.escape(key)}, which is not taken from a file"):
        training_arguments([f"config={path}"])


def test_arguments_of_training_are_handed_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train.epochs: 2\nruntime.num_threads: 1\n")
    training_keys = ["recipe=quickstart", "optimizer=adam", "optimizer.lr=0.1", "train.log_every_steps=3"]
    arguments = ["seeds=3", "out=x", "processes=2", "registry=y", 'sbatch="--nodes=2"', f"config={path}"]
    arguments += [*training_keys]
    words = ["train.epochs=2", "runtime.num_threads=1", *training_keys]
    assert training_arguments(arguments) == words
    assert {"train.epochs=2", "optimizer.name=adam", "optimizer.lr=0.1"} <= set(changed_keys(words))


def test_runs_are_of_a_copy_of_a_recipes_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of the file while seeds run, or wait in a queue, reaches none of them; nothing else is copied."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my recipe.yaml"
    path.write_text("run.name: mine\ntrain.epochs: 2\n")
    arguments = with_copied_recipe(["optimizer.lr=0.1", "recipe='my recipe.yaml'"], Path("runs/mine"))
    path.write_text("run.name: mine\ntrain.epochs: 3\n")
    assert arguments[0] == "optimizer.lr=0.1"
    assert compose_config(AppConfig, CONFIG_DIR, arguments).train.epochs == 2
    path.unlink()
    assert changed_keys(arguments) == ["optimizer.lr=0.1"]
    assert with_copied_recipe(["recipe=quickstart"], Path("runs/other")) == ["recipe=quickstart"]
    assert not Path("runs/other").exists()


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["optimizer=sgd"], "optimizer.name=sgd"),
        (["schedule=cosine"], "schedule.name=cosine"),
        (["loss=mse"], "loss.name=mse"),
        (["model=dlrm_dcn"], "model.interaction=dcn"),
        (["recipe=meta_kaggle_2019", "eval.split=val"], "eval.split=val"),
        (["train.eval_every_steps=7"], "train.eval_every_steps=7"),
        (["checkpoint.keep_best=false"], "checkpoint.keep_best=false"),
        (["runtime.precision=bf16"], "runtime.precision=bf16"),
        (["published.tolerance=0.5"], "published.tolerance=0.5"),
        (["data.synthetic.rows=20000"], "data.synthetic.rows=20000"),
    ],
)
def test_every_key_that_changes_a_recipe_is_named(arguments: list[str], key: str) -> None:
    assert key in changed_keys(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["recipe=bars_frappe_x1", "model=dcnv2"],
        ["data.path=x", "record.tensorboard=false", "checkpoint.every_steps=7", "eval.keep_scores=7", "baselines=true"],
    ],
)
def test_what_leaves_the_recipe_as_it_is_is_not_named(arguments: list[str]) -> None:
    assert changed_keys(arguments) == []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dataset_is_there", [True, False])
def test_a_job_for_each_run_that_is_not_done_or_queued(slurm: Path, dataset_is_there: bool) -> None:
    write_seeds(slurm / "x", 1)
    seeds = seeds_of(slurm / "x", 4)
    (slurm / "queued").write_text("77\n")
    lines = list(submit(seeds, ["recipe=quickstart", "a b"], "--nodes=2 --time=1", dataset_is_there))
    assert lines == [
        "seed 2: job 77 is queued or running",
        "seed 3: submitted as job 101",
        "seed 4: submitted as job 102",
    ]
    third, fourth = (slurm / "sbatch_words").read_text().splitlines()
    waits = "" if dataset_is_there else "--dependency=afterany:77 "
    assert third.startswith(f"--parsable --job-name=x_seed_3 {waits}--nodes=2 --time=1 /")
    assert third.endswith(
        f'launch/slurm.sh recipe=quickstart a b train.seed=3 run.name=x_seed_3 run.dir="{slurm}/x/seed_3"'
    )
    assert "train.seed=4" in fourth


def test_without_slurm_or_with_a_job_refused_one_line(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: no such\npartition' >&2; exit 1\n")
    with pytest.raises(UserError, match=r"^sbatch: sbatch: error: no such partition$"):
        list(submit(seeds_of(slurm, 1), [], "", True))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="sbatch, Slurm's command, is not here"):
        list(submit(seeds_of(slurm, 1), [], "", True))


def test_jobs_before_a_refused_one_are_named(slurm: Path) -> None:
    limit = 'if [ $(wc -l < sbatch_words) = 3 ]; then echo "limit of jobs" >&2; exit 1; fi\n'
    (slurm / "sbatch").write_text(SBATCH.replace("number=", limit + "number="))
    lines: list[str] = []
    jobs = submit(seeds_of(slurm / "x", 4), [], "", True)
    with pytest.raises(UserError, match=r"^sbatch: limit of jobs$"):
        lines.extend(jobs)
    assert lines == [f"seed {seed}: submitted as job {100 + seed}" for seed in (1, 2)]


def test_figures_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    (seed,) = write_seeds(tmp_path, 1)
    assert figures_of_test(seed.directory) is not None
    later = time.time() + 10
    os.utime(seed.directory / "summary.json", (later, later))
    assert figures_of_test(seed.directory) is None
    os.utime(seed.directory / "summary.json", (1, 1))
    write_test(seed.directory, 0.75)
    assert (seed.directory / "test.json").read_text()
    figures = figures_of_test(seed.directory)
    assert figures is not None
    assert figures.auc == 0.75


def _mllog(epochs: float, batch: int = 65_536, status: str = "success") -> str:
    """The lines of a log that the checker reads."""
    lines: list[tuple[str, object, dict[str, object]]] = [
        ("submission_benchmark", "dlrm_dcnv2", {}),
        ("global_batch_size", batch, {}),
        ("eval_accuracy", 0.8028, {"epoch_num": epochs}),
        ("run_stop", None, {"status": status}),
    ]
    return "".join(
        f":::MLLOG {json.dumps({'key': key, 'value': value, 'metadata': about})}\n" for key, value, about in lines
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "status", "words"), [(0.79, "success", "RCP test PASSED"), (0.3, "success", "RCP test FAILED")]
)
def test_mlperfs_checker_is_asked(tmp_path: Path, epochs: float, status: str, words: str) -> None:
    """The published 0.79 epochs pass, and a run that converges in 0.3, faster than the model can, does not."""
    runs = [tmp_path / str(number) for number in range(10)]
    for number, run in enumerate(runs):
        run.mkdir()
        (run / "mllog.txt").write_text(_mllog(epochs + number / 1000, status=status))
    verdict = check_convergence("dlrm_dcnv2", runs)
    assert verdict.startswith("MLPerf's reference convergence (dlrm_dcnv2), rules 6.0.0, 10 logs: ")
    assert words in verdict


def test_why_mlperfs_checker_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no points of it" in check_convergence("mine", [])
    assert "no run has a log (mllog.txt)" in check_convergence("dlrm_dcnv2", [tmp_path])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "install the checker by `pip install mlperf-logging`" in check_convergence("dlrm_dcnv2", [tmp_path])


def _written(reproduction: Reproduction, path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**json.loads(encode(reproduction)), **changes}))
    return path


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    reproduction = document(write_seeds(tmp_path, 2), "published.test_auc=0.7", "published.tolerance=0.1")
    assert read_reproduction(_written(reproduction, tmp_path / "r.json")) == reproduction


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "of version 2 of its format, here 1 is read; make it again"),
        ({"format": "other"}, "is not of python -m app.reproduce"),
        ({"seeds": "x"}, "key 'seeds' is \"x\""),
    ],
)
def test_another_version_and_damage_are_one_line(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    path = _written(document(write_seeds(tmp_path, 1)), tmp_path / "r.json", **changes)
    with pytest.raises(UserError) as caught:
        read_reproduction(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    path.write_text("{")
    with pytest.raises(UserError, match="damaged"):
        read_reproduction(path)


@pytest.mark.parametrize("out", [" a", "runs/'a'", 'runs/"a"', "runs/it's", "runs/a\\"])
def test_a_run_is_where_its_path_says_whatever_is_in_it(out: str) -> None:
    [seed] = seeds_of(Path(out), 1)
    override = next(each for each in seed.overrides if each.startswith("run.dir="))
    assert compose_config(AppConfig, CONFIG_DIR, [override]).run.dir == f"{out}/seed_1"
