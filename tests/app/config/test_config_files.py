"""config=FILE and recipe=FILE.yaml: what a file of keys gives is what the same keys give when they are typed."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from app.config.app_config import CONFIG_DIR
from app.config.commands import BenchConfig
from app.config.kinds import OptimizerName
from common.compose import compose_config
from common.errors import UserError
from common.keys import to_plain
from tests.app.conftest import composed

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
    file = written(tmp_path / "config.yaml", yaml.safe_dump(to_plain(config)))
    again = composed(f"config={file}")
    assert replace(again, tiny=config.tiny) == config  # what a tiny run changes is in its other keys


@pytest.mark.slow("examples")
def test_it_is_above_the_recipe_and_files_are_in_order(tmp_path: Path) -> None:
    one = written(tmp_path / "one.yaml", "recipe: deepspark_3day\ntrain: {seed: 1, epochs: 4}\ndata.scale: tiny")
    other = written(tmp_path / "other.yaml", "train.seed: 2")
    config = composed(f"config={one}", f"config={other}")
    assert config == composed("recipe=deepspark_3day", "data.scale=tiny", "train.seed=2", "train.epochs=4")
    assert composed(f"config={written(tmp_path / 'empty.yaml', '# nothing')}") == composed()


def test_a_dotted_name_in_a_mapping_is_one_name(tmp_path: Path) -> None:
    file = written(tmp_path / "my.yaml", "tiny: {train.max_steps: 3}\nenvironment.variables: {A.B: 1}")
    config = composed(f"config='{file}'", "data.scale=tiny")
    assert (config.train.max_steps, config.environment.variables["A.B"]) == (3, "1")


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
    with pytest.raises(UserError, match=rf"^recipe={nameless}: lacks run.name; add it to the file, or run.name=..."):
        composed(f"recipe={nameless}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trian: {epochs: 1}", "'trian'.*did you mean train.epochs?"),
        pytest.param("train.epohcs: 1", "epohcs.*did you mean train.epochs?", marks=SLOW),
        ("train: {epochs: abc}", "train.epochs=abc: must be a whole number"),
        pytest.param("optimizer.name: foo", "optimizer.name.*foo.* one of .?sgd, ", marks=SLOW),
        ("- a", "not a mapping; write one `key: value` a line"),
        ("train: {epochs: 1}\ntrain.epochs: 2", "line 2: train.epochs is given twice"),
        ("x: [", "not readable as YAML: .*line 1"),
        ("run.name: x\ntrain: {max_steps: -3}", "train.max_steps=-3: must be at least 0"),
        pytest.param("a: &x [*x]", "a value contains itself, by an alias", marks=SLOW),
        pytest.param("train: {? [a] : 3}", "line 1: a list or a mapping is no key", marks=SLOW),
        pytest.param("+train.epochs: 1", r"line 1: '\+train.epochs' is no key", marks=SLOW),
        pytest.param("5: 3", "line 1: '5' is no key", marks=SLOW),
        pytest.param("config: b.yaml", "line 1: a file takes no other file; type both", marks=SLOW),
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


def test_a_recipe_s_defaults_are_checked(tmp_path: Path) -> None:
    recipe = written(tmp_path / "own.yaml", "defaults:\n  - override /optimizer: nope\n")
    with pytest.raises(UserError, match=rf"^recipe={recipe}: .*optimizer/nope"):
        composed(f"recipe={recipe}")
