"""A run that begins with another run's parameters: bits of one uninterrupted run, and rows of tables by value."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from app.runtime.platform import Runtime
from tests.app.conftest import SMALL, Command
from tests.app.in_process import command_here, train_here, train_until
from tests.app.run_files import events
from tests.data_prep import oracle
from tests.data_prep.conftest import prepare
from tests.error_lines import refused

BASE = [*SMALL, "data.shuffle=false", "checkpoint.keep_best=false"]


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two days of hashed rows as one dataset, and each of them alone."""
    root = tmp_path_factory.mktemp("days")
    for number, name in enumerate(("day_0", "day_1", "val")):
        (root / name).write_bytes(oracle.make_rows(640 if name != "val" else 200, seed=number))
    keys = [f"data.val={root}/val", "data.encoding=hash", "data.max_ind_range=99"]
    for name, files in {"both": "day_?", "first": "day_0", "second": "day_1"}.items():
        prepare(f"data.train={root}/{files}", f"data.path={root}/{name}", *keys)
    return root / "both", root / "first", root / "second"


def digest(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["digest"]["parameters"])


@pytest.mark.medium
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_two_days_trained_in_turn_have_the_bits_of_both_at_once(
    optimizer: str, days: tuple[Path, Path, Path], runtime: Runtime, tmp_path: Path
) -> None:
    def train(data: Path, name: str, *overrides: str) -> Path:
        keys = [*BASE, f"optimizer={optimizer}", f"data.path={data}", f"run.dir={tmp_path}/{name}", *overrides]
        assert train_here(runtime, *keys) == "completed"
        return tmp_path / name

    whole, one, two = days
    train(one, "x")
    expected = digest(train(whole, "z"))
    assert digest(train(two, "y", f"checkpoint.warm_start_from={tmp_path}/x")) == expected
    anew = train(two, "w", f"checkpoint.warm_start_from={tmp_path}/x", "checkpoint.warm_start_optimizer=false")
    assert (digest(anew) == expected) == (optimizer == "sgd")


@pytest.mark.medium
def test_it_is_killed_resumed_replayed_and_names_its_parent(
    days: tuple[Path, Path, Path], runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [*BASE, "optimizer=adam", "checkpoint.every_steps=3", f"run.dir={tmp_path}/runs/y", f"data.path={days[2]}"]
    assert train_here(runtime, *BASE, "optimizer=adam", f"data.path={days[1]}", f"run.dir={tmp_path}/x") == "completed"
    start = [*keys, f"checkpoint.warm_start_from={tmp_path}/x", "eval.before_training=true"]
    for moment in ("in the beginning:1", "in the beginning:3", "kill:1", "before the save:1", "kill:5"):
        assert train_until(runtime, moment, *start) == "killed"
    assert train_here(runtime, *start) == "completed"
    assert train_here(runtime, *start, f"run.dir={tmp_path}/z") == "completed"
    assert digest(tmp_path / "runs/y") == digest(tmp_path / "z")
    first, *_ = events(tmp_path / "runs/y", "eval")
    assert command_here(runtime, "evaluate", f"run={tmp_path}/x", "split=val") == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert (first["step"], first["auc"]) == (0, evaluated["auc"])  # val is the same on both days
    parent = json.loads((tmp_path / "runs/y/manifest.json").read_text())["parent"]
    assert (parent["run"], parent["step"], parent["updates"]) == (f"{tmp_path}/x", 10, 10)
    assert command_here(runtime, "verify", f"run={tmp_path}/runs/y") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "identical"
    shutil.rmtree(tmp_path / "x/checkpoints")
    refused("which is not there; restore it", command_here, runtime, "verify", f"run={tmp_path}/runs/y")


def stored(run: Path) -> dict[str, torch.Tensor]:
    """The tensors of a run's newest checkpoint."""
    dcp_to_torch_save(run / "checkpoints" / (run / "checkpoints/latest").read_text().strip(), run / "whole.pt")
    tensors = torch.load(run / "whole.pt", weights_only=True)
    return {name: tensor for part in tensors.values() for name, tensor in flatten_state_dict(part)[0].items()}


@pytest.fixture(scope="module")
def new_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days with vocabularies of their own: some values of day 0 do not come back, and day 1 has new ones."""
    root = tmp_path_factory.mktemp("new_day")
    (root / "val").write_bytes(oracle.make_rows(200, seed=2))
    for number, values in enumerate((40, 60)):
        (root / f"day_{number}").write_bytes(oracle.make_rows(640, seed=number, values=values))
        prepare(f"data.train={root}/day_{number}", f"data.val={root}/val", f"data.path={root}/data_{number}")
    return root


@pytest.mark.medium
@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_rows_and_their_state_follow_their_values_into_another_dataset(
    optimizer: str, new_day: Path, runtime: Runtime, tmp_path: Path
) -> None:
    """Against dictionaries of values, after a step too small to change a weight."""
    keys = [*BASE, f"optimizer={optimizer}", "train.max_steps=1", "optimizer.lr=1e-30"]
    start: tuple[list[str], ...] = (
        ["optimizer.lr=0.1", "train.max_steps=10"],
        [],
        [f"checkpoint.warm_start_from={tmp_path}/x"],
    )
    for name, number, more in zip("xzy", (0, 1, 1), start, strict=True):
        assert train_here(runtime, *keys, f"data.path={new_day}/data_{number}", f"run.dir={tmp_path}/{name}", *more)
    before, anew, after = (stored(tmp_path / name) for name in "xzy")
    columns = [oracle.parse((new_day / f"day_{number}").read_bytes())[2].T for number in range(2)]
    seen, taken = 0, 0
    for name in before:
        if (found := re.search(r"\.t_cat_(\d+)\.", name)) is None:
            continue
        old, new = (oracle.vocabulary(column[int(found[1])]) for column in columns)
        places = {value: number + 1 for number, value in enumerate(old)}
        batch = set(columns[1][int(found[1])][:64].tolist())
        for row, value in enumerate(new, 1):
            source = before[name][places[value]] if value in places else anew[name][row]
            if "weight" in name.rpartition(".")[2] or value not in batch:
                seen, taken = seen + 1, taken + (value in places)
                assert torch.equal(after[name][row], source), (name, row)
    assert 0 < taken < seen


@pytest.mark.medium
def test_metrics_steps_and_the_schedule_begin_anew(new_day: Path, runtime: Runtime, tmp_path: Path) -> None:
    keys = [*BASE, "optimizer=adagrad", "schedule=warmup", "train.max_steps=6", "train.eval_every_steps=2"]
    start: tuple[list[str], ...] = [], [], [f"checkpoint.warm_start_from={tmp_path}/x", "eval.before_training=true"]
    for name, number, more in zip(("x", "anew", "y"), (0, 1, 1), start, strict=True):
        assert train_here(runtime, *keys, f"data.path={new_day}/data_{number}", f"run.dir={tmp_path}/{name}", *more)
    run, anew = tmp_path / "y", tmp_path / "anew"
    rates, expected = ([(event["step"], event["lr"]) for event in events(path, "train")] for path in (run, anew))
    assert rates == expected
    assert [event["step"] for event in events(run, "eval")] == [0, 2, 4, 6]
    assert [event["step"] for event in events(run, "eval_train")] == [0]
    assert command_here(runtime, "report", f'runs=["{anew}","{run}"]', f"out={tmp_path}/compared.html") == 0
    assert f"step 6 of {tmp_path}/x" in (tmp_path / "compared.html").read_text().replace("<wbr>", "")
    (cpu,) = {json.loads((path / "manifest.json").read_text())["hardware"]["cpu"] for path in (run, anew)}
    assert f"cpu ({cpu})" in (tmp_path / "compared.html").read_text().replace("<wbr>", "")
    last = events(tmp_path / "x", "eval")[-1]
    parent = json.loads((run / "manifest.json").read_text())["parent"]["evaluation"]
    assert (parent["step"], parent["auc"]) == (last["step"], last["auc"]) == (6, last["auc"])


@pytest.mark.medium
def test_a_column_that_comes_begins_anew_and_one_that_goes_is_dropped(runtime: Runtime, tmp_path: Path) -> None:
    users, others = ([row % size for row in range(400)] for size in (7, 5))
    tables = {"x": {"user": users, "city": others}, "y": {"user": users, "shop": others, "hour": users}}
    for name, columns in tables.items():
        pd.DataFrame({"clicked": [0, 1] * 200, **columns}).to_csv(tmp_path / f"{name}.csv", index=False)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"label": "clicked", "sparse": [*columns]}))
        files = [f"data.raw={tmp_path}/{name}.csv", f"data.schema={tmp_path}/{name}.yaml"]
        prepare(*files, f"data.path={tmp_path}/data_{name}")
    keys = [*BASE, "model=dlrm", "optimizer=adagrad", "optimizer.lr=1e-30", "train.max_steps=1"]
    for name, more in (("x", ["optimizer.lr=0.1"]), ("anew", [])):
        data = f"data.path={tmp_path}/data_{'x' if name == 'x' else 'y'}"
        assert train_here(runtime, *keys, data, f"run.dir={tmp_path}/{name}", *more) == "completed"
    start = [*keys, f"data.path={tmp_path}/data_y", f"run.dir={tmp_path}/y", f"checkpoint.warm_start_from={tmp_path}/x"]
    refused(r"over_arch\.0 has shape", train_here, runtime, *start)
    assert train_here(runtime, *start, "checkpoint.warm_start_skip=[over_arch.0]") == "completed"
    before, anew, after = (stored(tmp_path / name) for name in ("x", "anew", "y"))
    table_name = "sparse_arch.bags.embedding_bags.t_{}.weight"
    assert torch.equal(after[table_name.format("user")], before[table_name.format("user")])
    for name in ("shop", "hour"):
        assert torch.equal(after[table_name.format(name)], anew[table_name.format(name)])
    for name, source in (("over_arch.0", anew), ("over_arch.2", before)):
        assert torch.equal(after[f"{name}.weight"], source[f"{name}.weight"])


@pytest.mark.slow("processes")
def test_the_layout_changes_no_bits(new_day: Path, run_app: Command, tmp_path: Path) -> None:
    base = [*BASE, "optimizer=adagrad", "train.deterministic=layout", "train.micro_batch_size=16"]
    base += ["train.global_batch_size=96"]
    for first, kind in ((1, "table_wise"), (2, "column_wise")):
        keys = [f"data.path={new_day}/data_0", f"sharding.types={kind}", f"run.name=x{first}"]
        run_app("train", *base, *keys, processes=first)
        for processes in (1, 2):
            keys = [f"run.name=y{first}{processes}", f"checkpoint.warm_start_from=runs/x{first}"]
            keys += [f"data.path={new_day}/data_1", "sharding.types=row_wise"]
            run_app("train", *base, *keys, processes=processes)
    assert len({digest(tmp_path / f"runs/y{name}") for name in ("11", "12", "21", "22")}) == 1


@pytest.mark.medium
def test_what_does_not_fit_is_refused_with_the_remedy(
    days: tuple[Path, Path, Path], runtime: Runtime, tmp_path: Path
) -> None:
    keys = [*BASE, f"data.path={days[1]}", "train.max_steps=2", "optimizer=adagrad"]
    assert train_here(runtime, *keys, f"run.dir={tmp_path}/x") == "completed"
    start = [*keys, f"run.dir={tmp_path}/y", f"checkpoint.warm_start_from={tmp_path}/x"]
    for override, message in {
        "model.embedding_dim=8 model.dense_arch=[32,8]": "give model.embedding_dim=16",
        "model.over_arch=[24,1]": r"checkpoint\.warm_start_skip=\[over_arch\.0\]",
        "optimizer=sgd": "give optimizer=adagrad, or checkpoint.warm_start_optimizer=false",
        f"run.dir={tmp_path}/x checkpoint.resume=never checkpoint.overwrite=true": "is this run, or began with",
        "checkpoint.warm_start_from=nowhere": "nowhere",
        "checkpoint.resume=nowhere": "leave one out",
    }.items():
        refused(message, train_here, runtime, *start, *override.split())
    layers = ["model.over_arch=[24,1]", "checkpoint.warm_start_skip=[over_arch]"]
    assert train_here(runtime, *start, *layers) == "completed"
