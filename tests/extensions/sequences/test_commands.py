"""HSTU trains on a dataset of events as DLRM does on rows: resumed, replayed, sharded, scored; the recipe mlperf_v4."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from app.checkpoint.saver import load_tensors
from app.config.app_config import validate
from app.config.model import published_tables
from app.config.train import RuntimeConfig, TrainConfig, evaluation_steps
from app.model.embeddings import parameter_counts
from app.runtime.platform import Runtime
from app.training import checkpointer, meta_build, session
from app.training.state import RunLength
from data_prep.codec.values import text_key
from extensions.sequences.event_log import EventSplit
from tests.app.conftest import Command, Refusal, composed, ended, forked
from tests.app.in_process import train_here
from tests.app.run_files import events, losses, summary
from tests.app.training.test_resumption import BASE, FACTORS, disturb, spoil
from tests.data_prep.conftest import prepare
from tests.error_lines import error_line, refused
from tests.once import made_once

ADAM = ["optimizer=rowwise_adagrad", "optimizer.dense=adam", "optimizer.lr=0.001", "optimizer.beta1=0.95"]
ADAM += ["optimizer.beta2=0.999", "optimizer.eps=1e-8", "optimizer.max_grad_norm=1"]
TINY = ["model=hstu", "model.embedding_dim=16", "sequences.hstu.dim=16", "sequences.hstu.num_heads=1"]
TINY += ["sequences.hstu.attention_dim=8", "sequences.hstu.hidden_dim=8", "sequences.hstu.preprocessor_dim=16"]
TINY += ["sequences.hstu.item_dim=16", "sequences.history_length=15", "train.global_batch_size=32"]
TINY += ["eval.global_batch_size=64", "train.log_every_steps=1", "runtime.num_threads=1", "runtime.platform=cpu"]
TINY += ["checkpoint.every_steps=4", "checkpoint.asynchronous=false", *ADAM]
DROPOUT = ["sequences.hstu.input_dropout=0.2", "sequences.hstu.linear_dropout=0.1"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    overrides = ["data.source=synthetic_events", "data.synthetic_events.users=60", "data.synthetic_events.items=100"]
    return made_once(tmp_path_factory, "log", lambda root: prepare(*overrides, f"data.path={root}/out")) / "out"


@pytest.mark.slow("processes")
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
def test_two_processes_learn_what_one_does(sharding: str, run_app: Command, log: Path, tmp_path: Path) -> None:
    overrides = [*TINY, f"data.path={log}", "train.max_steps=10"]
    for processes in (1, 2):
        kind = [f"sharding.types={sharding}"] if processes == 2 else []
        run_app("train", *overrides, *kind, f"run.name={processes}", processes=processes)
    one, two = (tmp_path / "runs/1", tmp_path / "runs/2")
    np.testing.assert_allclose(losses(two), losses(one), rtol=0, atol=1e-6)
    assert summary(two)["eval"]["logloss"] == pytest.approx(summary(one)["eval"]["logloss"], abs=1e-6)
    assert summary(one)["eval"]["samples"] == 229
    for name in ("gauc", "gauc_users", "auc_torchrec"):
        assert summary(two)["eval"][name] == pytest.approx(summary(one)["eval"][name], abs=1e-3)
    assert 0 < summary(one)["eval"]["gauc_users"] < 60


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["data.source=synthetic_events"], "makes events, and DLRM learns from rows; give model=hstu"),
        ("train", ["data.path={log}"], "holds events, not rows; give model=hstu"),
        ("train", [*TINY, "data.path={dataset}"], "not events; give a dataset of events"),
        ("train", ["model=hstu", "data.path={log}", "model.dense_arch=[8]"], "model.dense_arch: is DLRM's"),
        ("train", [*TINY, "data.path={log}", "eval.split=test"], "has train and val"),
        ("bench", ["model=hstu"], "model=hstu: bench is for DLRM alone so far"),
    ],
)
def test_what_does_not_go_together_is_refused(
    command: str, arguments: list[str], message: str, refused_command: Refusal, log: Path, dataset: Path, trained: Path
) -> None:
    paths = {"log": log, "dataset": dataset, "trained": trained}
    assert message in refused_command(command, *(each.format(**paths) for each in arguments))


@pytest.fixture(scope="module")
def trained(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:

    def train(directory: Path) -> None:
        overrides = [*TINY, f"data.path={log}", "train.max_steps=4", "run.name=x"]
        process = ended(forked("train", *overrides, cwd=directory), directory)
        assert process.returncode == 0, process.stderr

    return made_once(tmp_path_factory, "trained", train) / "runs/x"


OWN_SCHEMA = """
user: who
item: what
time: at
actions: {good: {event: good}, bad: {event: bad}}
label: good
flag: promoted
crosses:
  user_x_hour: {of: [user, hour], rows: 50}
"""
OF_FLAG = "  user_x_promoted: {of: [user, promoted], rows: 50}\n"


def write_own_log(directory: Path, crosses: str) -> list[str]:
    rng, events = np.random.default_rng(3), 600
    table: dict[str, Any] = {"who": [f"user {i}" for i in rng.integers(0, 9, events)]}
    table |= {"what": [f"film {i}" for i in rng.integers(0, 30, events)], "at": np.arange(events) * 997}
    table |= {"event": rng.choice(["good", "bad"], events), "promoted": rng.integers(0, 2, events)}
    with open(directory / "log.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([list(table), *zip(*table.values(), strict=True)])
    (directory / "schema.yaml").write_text(OWN_SCHEMA + crosses)
    return [f"data.raw={directory}/log.csv", f"data.schema={directory}/schema.yaml", f"data.path={directory}/own"]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("kind", ["own log", "generated", "flag"])
def test_items_are_ranked_as_evaluation_scores_each_alone(
    kind: str, run_app: Command, trained: Path, tmp_path: Path, runtime: Runtime
) -> None:
    """Whatever their order and number, with crosses of the item, of user and hour alone, and of the flag."""
    directory = trained
    if kind != "generated":
        data_keys = write_own_log(tmp_path, OF_FLAG if kind == "flag" else "")
        run_app("train", *TINY, *data_keys, "train.max_steps=3", "run.name=own")
        directory = tmp_path / "runs/own"
    config = checkpointer.trained_config(directory, RuntimeConfig(), None)
    run = checkpointer.open_checkpoint(directory, None, config.data.path, runtime)
    this = session.build(config, runtime, run.root, run.manifest)
    load_tensors(run.path, this.model, optimizer=None)
    reader = this.split("val")
    assert isinstance(reader, EventSplit)
    alone = this.score(reader.eval_batches(1)).logits
    positions, events = reader.log.window(reader.log.eval_window), reader.log.events
    names = {text_key(text): text for text in [f"{kind} {i}" for kind in ("user", "film") for i in range(30)]}
    names |= {number: str(number) for number in range(200)}
    keys = np.load(run.root / "vocab/item.npy")
    users = reader.log.users_of(positions)
    indices = [i for i in range(len(positions)) if events.times[positions[i] - 1] < events.times[positions[i]]][-2:]
    for i in indices:
        promoted = int(events.flags[positions[i]] & 128 > 0)
        candidates = [names[int(keys[events.items[positions[i]] - 1])], *(names[int(key)] for key in keys[:3])]
        column = "what" if kind != "generated" else "item"
        texts = itertools.cycle((("0", "no", "False", ""), ("1", "1.0", "true", "YES"))[promoted])
        (tmp_path / "c.csv").write_text(
            f"{column},promoted\n" + "".join(f"{name},{next(texts)}\n" for name in candidates)
        )
        arguments = [f"run={directory}", f"user={names[int(events.users[users[i]])]}"]
        arguments += [f"time={events.times[positions[i]]}", "candidates=c.csv", "out=out.json", "top_k=null"]
        run_app("recommend", *arguments)
        document = json.loads((tmp_path / "out.json").read_bytes())
        logits = {each["candidate"]: each["logit"] for each in document["ranking"]}
        assert logits[candidates[0]] == pytest.approx(float(alone[i]), abs=1e-6)
        assert len({*logits.values()}) > 1
        assert document["history"] == positions[i] - events.offsets[users[i]]
        (tmp_path / "c.csv").write_text(f"{column},promoted\n{candidates[1]},{promoted}\n")
        run_app("recommend", *arguments)
        [only] = json.loads((tmp_path / "out.json").read_bytes())["ranking"]
        assert only["logit"] == logits[candidates[1]]
    if kind == "own log":
        refusal = run_app("recommend", f"run={directory}", "user=user 1", "candidates=all", status=2)
        assert "keeps no names of its items, which are texts; give a file" in error_line(refusal.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["user=99999"], "user=99999: not in the log; give one of its users, as in its column user"),
        (["user=7", "time=5"], "user=7: 0 events before time=5, and samples of the run have at least 20"),
        (["user=7", "candidates=x.csv"], "x.csv: row 3: item 4711 is not in the log of"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    arguments: list[str], message: str, refused_command: Refusal, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("item\n1\n4711\n")
    candidates = [] if "candidates=x.csv" in arguments else ["candidates=all"]
    assert message in refused_command("recommend", f"run={trained}", *candidates, *arguments)


@pytest.mark.slow("processes")
def test_several_tasks_are_learned(run_app: Command, log: Path, tmp_path: Path, runtime: Runtime) -> None:
    """Their losses are added, each has its AUC, the same on two processes; other tasks are no resumption."""
    overrides = [*TINY, f"data.path={log}", "train.max_steps=8", "sequences.tasks=[skip,like]"]
    overrides += ["data.allow_degenerate=true"]  # a like is no sample
    for processes in (1, 2):
        run_app("train", *overrides, f"run.name={processes}", processes=processes)
    one, two = (tmp_path / "runs/1", tmp_path / "runs/2")
    np.testing.assert_allclose(losses(two), losses(one), rtol=0, atol=2e-6)
    config = checkpointer.trained_config(one, RuntimeConfig(), None)
    run = checkpointer.open_checkpoint(one, None, config.data.path, runtime)
    this = session.build(config, runtime, run.root, run.manifest)
    reader = this.split("train")
    assert isinstance(reader, EventSplit)
    batch = next(reader.train_batches(32, 0, 0, 0))
    flags = torch.from_numpy(reader.log.events.flags[reader.log.window(0)[:32]])
    bits = [1 << list(reader.log.schema.actions).index(name) for name in ("listen_plus", "skip", "like")]
    bce, forward = torch.nn.functional.binary_cross_entropy_with_logits, this.forward(batch)
    parts = [bce(forward[:, task], (flags & bit > 0).float()) for task, bit in enumerate(bits)]
    expected = torch.stack(parts).sum()
    assert losses(one)[0] == pytest.approx(float(expected.detach()), abs=1e-6)
    load_tensors(run.path, this.model, optimizer=None)
    scores = this.score(this.split("val").eval_batches(64))
    figures = summary(one)["eval"]
    assert figures["auc"] == pytest.approx(roc_auc_score(scores.labels, scores.logits), abs=1e-9)
    logits, labels = scores.tasks[0]
    assert figures["auc_skip"] == pytest.approx(roc_auc_score(labels, logits), abs=1e-9)
    assert (labels == 1 - scores.labels).all()  # of listens, of which all samples are
    assert figures["auc_like"] is None  # none of them is a like
    refusal = run_app("train", *overrides, "run.name=1", "train.max_steps=9", "sequences.tasks=[skip]", status=2)
    assert "sequences.tasks=[skip]: the run at" in refusal.stderr
    refusal = run_app("train", *overrides, "run.name=3", "sequences.tasks=[listen_plus]", status=2)
    assert "must be actions of the log other than its label listen_plus" in error_line(refusal.stderr)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("number", "course"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] > 0)) for case in enumerate(FACTORS["course"])],
)
def test_a_disturbed_run_has_the_bits_of_an_undisturbed_one(
    number: int,
    course: str,
    runtime: Runtime,
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if course == "skipped steps":
        spoil(monkeypatch)
    saving = list(FACTORS["saving"].values())[number % 2]
    overrides = [f"data.path={log}", *BASE, *TINY, *DROPOUT, *FACTORS["course"][course], *saving]
    disturb(number, course, overrides, runtime, capsys)


@pytest.mark.medium
def test_a_run_begins_with_another_runs_parameters_on_the_same_log(runtime: Runtime, log: Path, tmp_path: Path) -> None:
    """The first evaluation is the other run's last; ids of another log are of other items."""
    keys = [*BASE, *TINY, "train.max_steps=4"]
    train_here(runtime, *keys, f"data.path={log}", f"run.dir={tmp_path}/x")
    start = [f"checkpoint.warm_start_from={tmp_path}/x", "eval.before_training=true", f"run.dir={tmp_path}/y"]
    assert train_here(runtime, *keys, f"data.path={log}", *start) == "completed"
    last, first = events(tmp_path / "x", "eval")[-1], events(tmp_path / "y", "eval")[0]
    assert (first["step"], first["auc"]) == (0, last["auc"])
    prepare("data.source=synthetic_events", "data.synthetic_events.users=50", f"data.path={tmp_path}/other")
    remedy = "start from a run on the same dataset"
    refused(remedy, train_here, runtime, *keys, f"data.path={tmp_path}/other", f"run.dir={tmp_path}/z", start[0])


YAMBDA = {"train": 2_290_835_423, "val": 2_058_204}  # samples


def test_the_recipe_has_the_parameters_of_its_source() -> None:
    config = composed("recipe=mlperf_v4")
    validate(config)
    assert sum(published_tables("mlperf_v4").rows.values()) == 293_051_712
    assert parameter_counts(meta_build.meta_model(config))["total"] == 293_051_712 * 512 + 15_243_057
    assert config.run.name == config.published.recipe == "mlperf_v4"
    tiny = composed("recipe=mlperf_v4", "data.scale=tiny")
    validate(tiny)
    assert vars(tiny.model) == vars(config.model)


@pytest.mark.parametrize(("batch", "every", "blocks"), [(8192, 280, 25), (16_384, 140, 31), (32_768, 70, 41)])
def test_the_grid_of_dlrmv4_is_the_rules(batch: int, every: int, blocks: int) -> None:
    """By hand: 2,290,835.423 samples in whole steps; the rules name the block of the first evaluation."""
    train = composed("recipe=mlperf_v4", f"train.global_batch_size={batch}").train
    assert evaluation_steps(train, YAMBDA["train"]) == (every, blocks * every)
    assert every * batch == 2_293_760
    length = length_of(train)
    steps, step = [], 0
    while step < (blocks + 2) * every:
        step = length.next_evaluation(step)
        steps.append(step)
    assert steps == [blocks * every, (blocks + 1) * every, (blocks + 2) * every]
    assert length.next_evaluation(length.total_steps - 1) == length.total_steps


def length_of(train: TrainConfig) -> RunLength:
    steps, (every, first) = YAMBDA["train"] // train.global_batch_size, evaluation_steps(train, YAMBDA["train"])
    return RunLength(steps, steps, train, first, every)
