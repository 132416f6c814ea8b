"""Every remedy that a message of app.train prints is typed, and works; every path can be typed."""

import operator
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from app.config.app_config import CONFIG_DIR, AppConfig, validate_new_run
from app.config.commands import DoctorConfig, EvaluateConfig, RecommendConfig, VerifyConfig
from app.data import prepare
from app.record.documents import read_config
from common.compose import compose_config
from common.errors import UserError
from data_prep.config import SplitConfig
from data_prep.dataset.options import DataSource, SplitMethod
from tests.app.conftest import composed
from tests.changed import changed

TWO, RANDOM = "data.train=a data.test=b data.path=c", "data.val=d data.split.method=random"
BOTH = "optimizer=sgd optimizer.dense=adam optimizer.beta1=0.9 optimizer.beta2=0.99"
# what is typed; what its message must have; what is typed next, of its groups
REMEDIES = {
    "learning rate": ("optimizer.learning_rate=0.1", r"did you mean (optimizer\.lr)\?", "{0}=0.1"),
    "steps": ("--steps=5", r"have no dashes; did you mean (train\.max_steps)\?", "{0}=5"),
    "batch": ("--batch-size=64", r"did you mean (train\.global_batch_size)\?", "{0}=64"),
    "epochs": ("num_epochs=2", r"did you mean (train\.epochs)\?", "{0}=2"),
    "dashes": ("--train.epochs=2", r"keys have no dashes; write (\S+)$", "{0}"),
    "dashes and a space": ("--train.epochs 2", r"keys have no dashes; write (\S+)$", "{0}"),
    "dashes and spaces": ("--run.dir 'my runs/a'", r"keys have no dashes; write '(.*)'$", "{0}"),
    "a ready-made value": ("optimizer=Adam", r"; did you mean (optimizer=adam)\?$", "{0}"),
    "a recipe": ("recipe=quikstart", r"; did you mean (recipe=quickstart)\?$", "{0}"),
    "data_prep's": ("data.split.metod=random", r"did you mean (data\.split\.method)\?", "{0}=random"),
    "sources": ("data=synthetic", r"data is a group of keys; give (data\.source=synthetic)$", "{0}"),
    "downloads": ("data=criteo", r"give (data.source=criteo_1tb)$", "{0}"),
    "own": ("data=custom", r"give one of them, such as (data\.source)$", "{0}=synthetic"),
    "another generator": (
        "data.source=synthetic data.random.rows=200000",
        r"data\.random\.rows=200000: has no effect without (data\.source=random); leave it out$",
        "{0} data.random.rows=200000",
    ),
    "rows without a source": (
        "data.path=HERE data.synthetic.rows=400",
        r"or (data\.source=synthetic)\)",
        "data.path=new {0} data.synthetic.rows=400",
    ),
    "no dataset": ("data.path=new", r"or (data\.source=synthetic) or", "data.path=new {0}"),
    "no dataset, recipe": ("recipe=mlperf_v1", r"or (data\.scale=tiny)", "recipe=mlperf_v1 {0}"),
    "source and raw": ("data.source=random data.raw=a data.path=b", r"leave one of them out", "data.raw=a data.path=b"),
    "no path": ("data.raw=a", r"(data\.path): not given", "data.raw=a {0}=b"),
    "no file of val": (TWO, r"or (eval\.split=test)$", f"{TWO} {{0}}"),
    "a method": (f"{TWO} {RANDOM}", r"give (data\.split\.method=null)$", f"{TWO} {RANDOM} {{0}}"),
    "no file of val, held out": (TWO, r"(data\.split\.held_out=0\.1) to hold it out", f"{TWO} {{0}}"),
    "name": ("run.name=a/b", r"such as (a1), and give the directory in (run\.dir)", "run.name={0} {1}=runs/a/b"),
    "threads": ("runtime.num_threads=1000", r"give (runtime\.num_threads=\d+)", "{0}"),
    "eps": (BOTH, r"(optimizer\.eps)=null: .* needs one, such as (\S+)", f"{BOTH} {{0}}={{1}}"),
    "both intervals": (
        "train.eval_every_steps=9 train.eval_every_fraction=0.1",
        r"set one of them to (null)",
        "train.eval_every_steps={0} train.eval_every_fraction=0.1",
    ),
    "both batches": (
        "train.local_batch_size=8",
        r"set train.local_batch_size=null or (\S+)$",
        "train.local_batch_size=8 {0}",
    ),
    "weights": (
        "loss=weighted_bce loss.class_weights=[1]",
        r"such as (\[1,3\])",
        "loss=weighted_bce loss.class_weights={0}",
    ),
    "profile": ("runtime.profile_steps=[3]", r"such as (\[20,25\])", "runtime.profile_steps={0}"),
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


def test_a_key_of_data_prep_is_the_same_key_here() -> None:
    for override in ("data.split.method=random", "data.split={method: random}"):
        assert checked([override]).data.split == SplitConfig(SplitMethod.random)
    config = checked(["data.synthetic.days=2", "data.memory_budget=1GiB"]).data
    assert (config.synthetic.days, config.memory_budget) == (2, "1GiB")


def test_the_source_and_the_path_go_together(tmp_path: Path, dataset: Path) -> None:
    job = prepare._job(checked(["data.source=synthetic", f"data.path={tmp_path}/new", "data.synthetic.rows=99"]).data)
    assert job is not None
    assert (job.data.path, job.data.synthetic.rows, job.data.source) == (f"{tmp_path}/new", 99, DataSource.synthetic)
    assert prepare._job(checked([f"data.path={dataset}"]).data) is None


@pytest.mark.parametrize(
    ("schema", "name", "overrides"),
    [
        (EvaluateConfig, "evaluate", ["run=a"]),
        (VerifyConfig, "verify", ["run=a"]),
        (DoctorConfig, "doctor", []),
        (RecommendConfig, "recommend", ["run=a", "candidates=b"]),
    ],
)
def test_data_path_has_one_name_everywhere(schema: type, name: str, overrides: list[str]) -> None:
    assert compose_config(schema, CONFIG_DIR, [*overrides, "data.path=x"], name).data.path == "x"


def test_a_run_by_its_place_alone_or_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/config.yaml").write_text("run: {name: a}\n")
    with pytest.raises(UserError, match=r"runs/a: give it as run=runs/a$"):
        compose_config(EvaluateConfig, CONFIG_DIR, ["runs/a"], "evaluate")
    assert read_config(Path("runs/a")) == {"run": {"name": "a"}}
    (tmp_path / "runs/half").mkdir()
    (tmp_path / "runs/half/config.yaml").write_text("run: {")
    for run, message in (
        ("a", r"^run=a: .*; did you mean runs/a\?$"),
        ("b", r"^run=b: .*; give one, such as runs/quickstart$"),
        ("runs/quickstart", r"; python -m app.train makes it$"),
        ("runs/half", r"; give one, such as runs/quickstart$"),
    ):
        with pytest.raises(UserError, match=message):
            read_config(Path(run))


def test_a_choice_is_not_blamed_for_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("optimizer: adam\ntrain: {epoch: 3}\n")
    with pytest.raises(UserError, match=r"did you mean train\.epochs\?"):
        composed("config=my.yaml")
    with pytest.raises(UserError, match=r"^configuration: optimizer=lion: not one of adagrad, .*; give one of these$"):
        composed("optimizer=lion")
    with pytest.raises(UserError) as caught:  # a command that takes no groups
        compose_config(EvaluateConfig, CONFIG_DIR, ["run=a", "data=data/mine"], "evaluate")
    assert "not one of" not in str(caught.value)


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
KEYS = ["data.path", "data.raw", "data.schema", "run.dir", "checkpoint.resume", "sharding.plan"]
KEYS += ["data.multi_hot.directory"]


@pytest.mark.slow("processes")
@pytest.mark.parametrize("path", PATHS)
def test_paths_can_be_typed(path: str) -> None:
    """As they are, or as the error says, which a shell hands on as it should."""
    words = []
    for key in KEYS:
        words.append(shlex.quote(f"{key}=/d/{path}"))
        try:
            composed(f"{key}=/d/{path}", "data.multi_hot.sizes=[1]")
        except UserError as error:
            words[-1] = str(error).partition("; write ")[2]
    typed = subprocess.check_output(f"printf '%s\\0' {' '.join(words)}", shell=True, text=True)
    config = composed(*typed.split("\0")[:-1], "data.multi_hot.sizes=[1]")
    for key in KEYS:
        assert operator.attrgetter(key)(config) == f"/d/{path}"
