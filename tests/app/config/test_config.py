"""Keys: those that are refused before anything is built, whose remedies are typed and work; files of keys."""

import operator
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from app.config.app_config import CONFIG_DIR, AppConfig, validate_new_run
from app.config.commands import BenchConfig, EvaluateConfig
from app.config.kinds import OptimizerName
from app.data import prepare
from app.training import meta_build
from common.compose import compose_config
from common.documents import plain
from common.errors import UserError
from tests.app.conftest import composed
from tests.changed import changed
from tests.error_lines import refused

LAYOUT, OF_64 = "train.deterministic=layout", "train.global_batch_size=64 train.drop_last=false"
NO_EVALUATIONS = "train.eval_every_steps=null"
MIXED_PAIRS = "model.interaction=scalar_pairs model.mixes_samples=true"
ADD_EVALUATIONS = "has no effect without evaluations while training; add train.eval_every_fraction=1"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("train.foo=1", "'train.foo'.* 'foo' not in 'TrainConfig'"),
        ("train.max_steps=many", "train.max_steps=many: must be a whole number"),
        ("train.epochs=???", "train.epochs has no value; add train.epochs=..."),
        ("optimizer=lion", "optimizer=lion: not one of adagrad, adam, lamb, rowwise_adagrad, rowwise_adagrad_adam, "),
        ("train.global_batch_size=0", "train.global_batch_size=0: must be at least 1"),
        ("model.interaction=dott", "not one of dot, .*; did you mean model.interaction=dot?"),
        ("optimizer.lr=0.001,0.01", "takes one value; start a run for each: for value in 0.001 0.01; do python -m app"),
        ("loss.class_weights=[1,2]", "has no effect with loss=bce"),
        ("model.dense_arch=[8]", "its last width must be model.embedding_dim=16"),
        ("sharding.types=diagonal", "sharding.types=diagonal: must be one of data_parallel, table_wise, row_wise"),
        ("sharding.kernels=dense", "dense is no other type's; table_wise"),
        ("checkpoint.overwrite=true", "checkpoint.overwrite=true: has no effect with checkpoint.resume=auto"),
        ("loss=weighted_bce loss.class_weights=[1,0]", "must be the weights of label 0 and of label 1"),
        ("model.interaction=projection model.projection_branch1=[8,24]", "must be a multiple of .*=16"),
        ("optimizer=rowwise_adagrad sharding=column_wise", "another algorithm"),
        ("optimizer.dense=rowwise_adam", "only tables have rows; use adam"),
        ("train.max_samples=9 train.max_steps=5", "train.max_samples=9: not one batch of train.global_batch_size=512"),
        ("model.mixes_samples=true", "with model.interaction=dot; leave it out, or use model.interaction=scalar_pairs"),
        ("optimizer=rowwise_adagrad +sharding.tables.cat_1.types=grid_shard", "sharding.tables.cat_1.types=grid_shard"),
        ("schedule=warmup_poly schedule.decay_start_step=5", "may not start before the warm-up ends"),
        ("model.dropout=1", r"model\.dropout=\[1\.0\]: must be a list of numbers in \[0, 1\)"),
        ("model.dropout=[0.1,0.2,0.3]", r"model\.over_arch has 2 hidden layers; give one rate for all, or 2"),
        ("model.numeric=vectors", r"has no effect with model\.numeric=vectors; give model\.dense_arch=\[\]"),
        ("model.batch_norm=true train.global_batch_size=1", "needs at least two rows in a batch"),
        ("optimizer.clip_tables=true", r"has no effect without optimizer\.max_grad_norm"),
        ("recipe=bars_frappe_x1 model=dlrm_dcn", "published with model=dlrm, dcnv2, crossnetv2, dnn or lr"),
        (f"{MIXED_PAIRS} train.drop_last=false", "drop_last=false has no meaning"),
        (
            "runtime.compile=step train.drop_last=false",
            "drop_last=false: not with .*=step, .*give runtime.compile=none",
        ),
        ("train.deterministic=maybe", "must be true, false or layout"),
        (f"{LAYOUT} model.batch_norm=true train.micro_batch_size=7 {OF_64}", "leaves a micro-batch of one row"),
        (f"{LAYOUT} runtime.precision=bf16", "give runtime.precision=fp32"),
        (f"{NO_EVALUATIONS} train.early_stop_patience=2", f"^train.early_stop_patience=2: {ADD_EVALUATIONS}"),
        (
            "train.monitor=gauc",
            "^train.monitor=gauc: gauc is over groups of rows; give eval.group_by=COLUMN, or use auc",
        ),
        ("train.monitor=ne checkpoint.keep_best=false", "^train.monitor=ne: has no effect with checkpoint.keep_best"),
        ("data.val=b", "^data.val: needs data.train"),
        ("data.split=3", "data.split is a group of keys; give one of them, such as data.split.method"),
    ],
)
def test_is_refused(overrides: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        validate_new_run(composed("data.path=none", "run.name=x", *overrides.split()))
    assert "\n" not in str(caught.value)


def test_a_run_that_is_named_without_its_key() -> None:
    message = "configuration: runs/quickstart: give it as run=runs/quickstart"
    refused(message, compose_config, EvaluateConfig, CONFIG_DIR, ["runs/quickstart"], "schema")
    refused("configuration: quickstart: give it as key=value", composed, "quickstart")


def test_names_and_paths_are_taken_as_they_are_typed() -> None:
    keys = ["run.name", "data.path", "data.schema", "data.chunk_bytes", "environment.variables.OMP_NUM_THREADS"]
    overrides = [*(f"{key}=2026_11_24" for key in keys), "data.remote.directory=1e3"]
    config = composed(*overrides)
    assert (config.run.name, config.run.dir) == ("2026_11_24", "runs/2026_11_24")
    assert (config.data.path, config.data.schema) == ("2026_11_24", "2026_11_24")
    assert (config.data.chunk_bytes, config.data.remote.directory) == ("2026_11_24", "1e3")
    assert config.environment.variables["OMP_NUM_THREADS"] == "2026_11_24"
    assert compose_config(EvaluateConfig, CONFIG_DIR, ["run=2026_11_24"], "evaluate").run == "2026_11_24"


def test_a_recipe_without_its_files_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = composed("recipe=bars_frappe_x1", "train.max_steps=0")
    assert meta_build.is_wanted(config)
    (tmp_path / "data/frappe_x1").mkdir(parents=True)
    (tmp_path / "data/frappe_x1/train.csv").touch()
    assert not meta_build.is_wanted(config)


TWO, RANDOM = "data.train=a data.test=b data.path=c", "data.val=d data.split.method=random"
BOTH = "optimizer=sgd optimizer.dense=adam optimizer.beta1=0.9 optimizer.beta2=0.99"
OF_RANDOM, FEW, TENTH = "data.random.rows=9", "data.synthetic.rows=400", "train.eval_every_fraction=0.1"
# what is typed; what its message must have; what is typed next, of its groups
REMEDIES = {
    "learning rate": ("optimizer.learning_rate=0.1", r"did you mean (optimizer\.lr)\?", "{0}=0.1"),
    "steps": ("--steps=5", r"have no dashes; did you mean (train\.max_steps)\?", "{0}=5"),
    "dashes and spaces": ("--run.dir 'my runs/a'", r"keys have no dashes; write '(.*)'$", "{0}"),
    "a ready-made value": ("optimizer=Adam", r"; did you mean (optimizer=adam)\?$", "{0}"),
    "data_prep's": ("data.split.metod=random", r"did you mean (data\.split\.method)\?", "{0}=random"),
    "sources": ("data=synthetic", r"data is a group of keys; give (data\.source=synthetic)$", "{0}"),
    "another generator": (
        f"data.source=synthetic {OF_RANDOM}",
        r"no effect without (data\.source=\w+); lea",
        f"{{0}} {OF_RANDOM}",
    ),
    "no path": ("data.raw=a", r"(data\.path): not given", "data.raw=a {0}=b"),
    "a method": (f"{TWO} {RANDOM}", r"give (data\.split\.method=null)$", f"{TWO} {RANDOM} {{0}}"),
    "no file of val, held out": (TWO, r"(data\.split\.held_out=0\.1) to hold it out", f"{TWO} {{0}}"),
    "name": ("run.name=a/b", r"such as (a1), and give the directory in (run\.dir)", "run.name={0} {1}=runs/a/b"),
    "threads": ("runtime.num_threads=1000", r"give (runtime\.num_threads=\d+)", "{0}"),
    "eps": (BOTH, r"(optimizer\.eps)=null: .* needs one, such as (\S+)", f"{BOTH} {{0}}={{1}}"),
    "both intervals": (
        f"{TENTH} train.eval_every_steps=9",
        r"or use (train\.eval_every_fraction=null)",
        f"{TENTH} train.eval_every_steps=9 {{0}}",
    ),
}


def checked(overrides: list[str]) -> AppConfig:
    config = composed(*overrides)
    validate_new_run(config)
    prepare._job(config.data)
    return config


@pytest.mark.parametrize("case", REMEDIES)
def test_each_remedy_works(case: str, tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bad, message, good = REMEDIES[case]
    with pytest.raises(UserError) as error:
        checked([override.replace("HERE", str(dataset)) for override in shlex.split(bad)])
    assert "\n" not in str(error.value)
    match = re.search(message, str(error.value))
    assert match, error.value
    checked([override.format(*match.groups()) for override in good.split()])


NAMES = ["a/b", "..", ".", ".a", "../../evil", "a\nb", "a\x1b[31m", "a$b", "a;b", "a b ", " a", "-a", "a`b", "<script>"]
NAMES += ["a*", "a\\\\b", "x" * 300, "a\u202eb", "a'b", "a|b", "a&b", "a?b", "~a"]


@pytest.mark.slow("examples")
@pytest.mark.parametrize("name", NAMES)
def test_names_of_runs_that_are_refused(name: str) -> None:
    config = changed(composed(), {"run.name": name})
    with pytest.raises(UserError, match=r"(?s)run\.name=.*run\.dir"):
        validate_new_run(config)


@pytest.mark.parametrize("name", ["a", "a b", "数据", "lr=0.1,seed=2", "a.b", "e\u0301", "a-b_c+d@e%f"])
def test_names_of_runs_that_are_taken(name: str) -> None:
    validate_new_run(changed(composed(), {"run.name": name}))


PATHS = ["a b", "unicode 数据.csv", "a(1).csv", "a=1,b.csv", "it's", 'a"b', "[x]", "{y}", "a#b", "x:y", "a;b", "back\\"]
KEYS_OF_PATHS = ["data.path", "data.raw", "data.schema", "run.dir", "checkpoint.resume", "sharding.plan"]
KEYS_OF_PATHS += ["data.multi_hot.directory"]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("path", PATHS)
def test_paths_can_be_typed(path: str) -> None:
    words = []
    for key in KEYS_OF_PATHS:
        words.append(shlex.quote(f"{key}=/d/{path}"))
        try:
            composed(f"{key}=/d/{path}", "data.multi_hot.sizes=[1]")
        except UserError as error:
            words[-1] = str(error).partition("; write ")[2]
    typed = subprocess.check_output(f"printf '%s\\0' {' '.join(words)}", shell=True, text=True)
    config = composed(*typed.split("\0")[:-1], "data.multi_hot.sizes=[1]")
    for key in KEYS_OF_PATHS:
        assert operator.attrgetter(key)(config) == f"/d/{path}"


SLOW = pytest.mark.slow
KEYS = """\
# nested, dotted, of a group, and texts that look like numbers
run: {name: 2026_11_24}
train.epochs: 3
train:
  seed: 7
  max_steps:   # null
optimizer: adam
optimizer.lr: 1e-3
model:
  dense_arch: [64, 16]
environment.variables: {OMP_X: 1, NCCL_X: a b}
data.path: "/x/y z,1"
record.tensorboard: no
"""
TYPED = ["run.name=2026_11_24", "train.epochs=3", "train.seed=7", "train.max_steps=null", "optimizer=adam"]
TYPED += ["optimizer.lr=1e-3", "model.dense_arch=[64,16]", "environment.variables.OMP_X=1"]
TYPED += ["environment.variables.NCCL_X='a b'", "data.path='/x/y z,1'", "record.tensorboard=false"]
RECIPE = """\
defaults:
  - override /optimizer: adam
run:
  name: own
train:
  epochs: 9
train.seed: 5
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.medium
def test_a_file_is_as_if_its_keys_were_typed(tmp_path: Path) -> None:
    file = written(tmp_path / "my.yaml", KEYS)
    assert composed(f"config={file}") == composed(*TYPED)
    assert composed("train.epochs=8", f"config={file}", "optimizer=sgd") == composed(
        *[override for override in TYPED if override != "optimizer=adam"], "train.epochs=8", "optimizer=sgd"
    )


@pytest.mark.parametrize(
    ("lines", "directory"),
    [
        ("run: {name: a, dir: runs/a}", "runs/b"),
        ('run.name: "a"\nrun.dir: "runs/a"', "runs/b"),
        ("run: {name: a, dir: elsewhere/a}", "elsewhere/a"),
        ("run: {dir: runs/a}", "runs/a"),
    ],
)
def test_a_recorded_run_by_a_new_name_has_a_new_directory(tmp_path: Path, lines: str, directory: str) -> None:
    file = written(tmp_path / "my.yaml", lines)
    assert composed(f"config={file}", "run.name=b").run.dir == directory
    assert composed("run.name=b", f"config={file}", "run.dir=c").run.dir == "c"


@pytest.mark.medium
@pytest.mark.parametrize(
    "overrides",
    [
        ["data.random.rows=200000", "data.source=random"],
        ["data.source=criteo_kaggle", "data.remote.sha256={x.gz: y}"],
        ["data.source=criteo_1tb", "data.days=[0]"],
        ["data.train=a", "data.path=b", "data.checksums={a: '0123'}"],
        ["recipe=mlperf_v1", "data.scale=tiny"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_a_recorded_configuration_leads_to_the_same(tmp_path: Path, overrides: list[str]) -> None:
    config = composed(*overrides)
    file = written(tmp_path / "config.yaml", yaml.safe_dump(plain(config)))
    again = composed(f"config={file}")
    assert replace(again, tiny=config.tiny) == config  # what a tiny run changes is in its other keys


@pytest.mark.slow("examples")
def test_it_is_above_the_recipe_and_files_are_in_order(tmp_path: Path) -> None:
    one = written(tmp_path / "one.yaml", "recipe: deepspark_3day\ntrain: {seed: 1, epochs: 4}\ndata.scale: tiny")
    other = written(tmp_path / "other.yaml", "train.seed: 2")
    config = composed(f"config={one}", f"config={other}")
    assert config == composed("recipe=deepspark_3day", "data.scale=tiny", "train.seed=2", "train.epochs=4")
    assert composed(f"config={written(tmp_path / 'empty.yaml', '# nothing')}") == composed()


@pytest.mark.medium
def test_a_recipe_in_a_file(tmp_path: Path) -> None:
    recipe = written(tmp_path / "own.yaml", RECIPE)
    config = composed(f"recipe={recipe}")
    assert (config.run.name, config.train.epochs, config.train.seed) == ("own", 9, 5)
    assert config.optimizer.name is OptimizerName.adam
    file = written(tmp_path / "my.yaml", f"recipe: {recipe}\ntrain.epochs: 4")
    assert composed(f"config={file}").train.epochs == 4
    assert composed(f"config={file}", "train.epochs=2").train.epochs == 2
    assert compose_config(BenchConfig, CONFIG_DIR, [f"recipe={recipe}"], "bench").train.epochs == 9
    nameless = written(tmp_path / "nameless.yaml", "data.path: 2026_11_24\ntrain.max_steps: 9")
    config = composed(f"recipe={nameless}", "run.name=007")
    assert (config.run.name, config.data.path, config.train.max_steps) == ("007", "2026_11_24", 9)
    refused(rf"^recipe={nameless}: lacks run.name; add it to the file, or run.name=...", composed, f"recipe={nameless}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {epochs: abc}", "train.epochs=abc: must be a whole number"),
        ("train: {epochs: 1}\ntrain.epochs: 2", "line 2: train.epochs is given twice"),
        ("x: [", "not readable as YAML: .*line 1"),
        ("run.name: x\ntrain: {max_steps: -3}", "train.max_steps=-3: must be at least 0"),
        pytest.param("a: &x [*x]", "a value contains itself, by an alias", marks=SLOW),
        pytest.param("train: {? [a] : 3}", "line 1: a list or a mapping is no key", marks=SLOW),
        (None, "No such file or directory; give a YAML file of keys"),
    ],
)
def test_errors_name_the_file_and_the_key(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    if text is not None:
        path.write_text(text)
    for option in ("config", "recipe"):
        with pytest.raises(UserError, match=rf"^{option}={path}: .*{message}") as caught:
            composed(f"{option}={path}")
        assert "\n" not in str(caught.value)
