"""Refusals before anything is built, and their messages."""

from pathlib import Path

import pytest

from app.config.app_config import CONFIG_DIR, AppConfig, validate, validate_new_run
from app.config.commands import BenchConfig, EvaluateConfig, RecommendConfig, VerifyConfig
from app.config.model import Interaction
from app.training import meta_build
from common.compose import ConversionError, compose_config, convert
from common.errors import UserError
from common.keys import MISSING, describe, flat_values, keys_of, to_plain
from tests.app.conftest import REPOSITORY, composed
from tests.forks import run_module

INTERACTIONS = ", ".join(kind.name for kind in Interaction)
LAYOUT, OF_64 = "train.deterministic=layout", "train.global_batch_size=64 train.drop_last=false"
NO_EVALUATIONS = "train.eval_every_steps=null"
ADD_EVALUATIONS = "has no effect without evaluations while training; add train.eval_every_fraction=1"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("train.foo=1", "'train.foo'.* 'foo' not in 'TrainConfig'"),
        ("train.max_steps=many", "train.max_steps=many: must be a whole number"),
        ("train.max_steps", "train.max_steps: give it as key=value"),
        ("train.epochs=???", "train.epochs has no value; add train.epochs=..."),
        ("environment.variables={1:a}", "environment.variables={1:a}: must be a mapping of names"),
        ("~train.epochs", "~train.epochs: no key can be removed; leave it out, or give train.epochs=null"),
        ("model.interaction=transformer", f"interaction=transformer: not one of {INTERACTIONS}; give one of these"),
        ("optimizer=lion", "optimizer=lion: not one of adagrad, adam, lamb, rowwise_adagrad, rowwise_adagrad_adam, "),
        ("recipe=nothing", "recipe=nothing: not one of amd_2026, .*; give one of these"),
        ("~recipe", "~recipe: recipe is always one of amd_2026, .*; leave ~recipe out for the usual one, or give re"),
        ("~model=dlrm", "~model=dlrm: model is always one of .*, dlrm, .*give model=NAME"),
        ("model.dropout=true", "model.dropout=true: must be a number or a list of numbers: .*, as 0.2, or one a layer"),
        ("model.over_arch=False", "model.over_arch=false: must be a number or a list of numbers: widths"),
        ("train.global_batch_size=0", "train.global_batch_size=0: must be at least 1"),
        ("train.max_steps=-1", "train.max_steps=-1: must be at least 0"),
        ("model.interaction=dott", "not one of dot, .*; did you mean model.interaction=dot?"),
        ("optimizer.lr=0.001,0.01", "takes one value; start a run for each: for value in 0.001 0.01; do python -m app"),
        ("loss=hinge", "loss=hinge: not one of bce, mse, weighted_bce; give one of these"),
        ("loss.class_weights=[1,2]", "has no effect with loss=bce"),
        ("model.dense_arch=[8]", "its last width must be model.embedding_dim=16"),
        ("model.over_arch=[8,2]", "its last width must be 1"),
        ("model.over_arch=[]", "must be a list of widths"),
        ("sharding.types=diagonal", "sharding.types=diagonal: must be one of data_parallel, table_wise, row_wise"),
        ("sharding.types=[row_wise,diagonal]", "must be one of"),
        ("sharding.types=[]", "must be one of"),
        ("sharding.kernels=dense", "dense is no other type's; table_wise"),
        ("sharding.kernels=fast", "must be one of dense, fused"),
        ("sharding.cache_load_factor=0.1", "has no effect without the kernel fused_uvm_caching"),
        ("sharding.min_partition=8", "has no effect without a column-wise type"),
        ("+sharding.tables.cat_0.tpyes=row_wise", "must be keys of types, kernels"),
        ("+sharding.tables.cat_0=row_wise", "must be keys of types, kernels"),
        ("+sharding.tables.cat_0.types=skewed", "sharding.tables.cat_0.types=skewed: must be one of"),
        ("checkpoint.overwrite=true", "checkpoint.overwrite=true: has no effect with checkpoint.resume=auto"),
        ("model.interaction=cat model.interaction_itself=true", "no effect with model.interaction=cat"),
        ("loss=weighted_bce loss.class_weights=[1]", "must be the weights of label 0 and of label 1"),
        ("loss=weighted_bce loss.class_weights=[1,0]", "must be the weights of label 0 and of label 1"),
        ("model.dcn_num_layers=2", "model.dcn_num_layers=2: has no effect with model.interaction=dot"),
        ("model.interaction=projection model.projection_branch1=[8,24]", "must be a multiple of .*=16"),
        ("model.interaction=projection model.projection_branch2=[]", "must be a list of widths"),
        ("optimizer=rowwise_adagrad sharding=column_wise", "another algorithm"),
        ("optimizer=rowwise_adam sharding=column_wise", "rowwise_adam would look at each shard's columns"),
        ("optimizer=lamb sharding=column_wise", "lamb would look at each shard's columns"),
        ("optimizer=sgd optimizer.beta1=0.9", "optimizer.beta1=0.9: has no effect with sgd"),
        ("optimizer=sgd optimizer.dense=adam", "optimizer.eps=null: adam and sgd needs one"),
        ("optimizer.dense=rowwise_adam", "only tables have rows; use adam"),
        ("train.local_batch_size=8", "train.global_batch_size=512: has no effect with train.local_batch_size=8"),
        ("train.eval_every_steps=9 train.eval_every_fraction=0.1", "set one of them to null"),
        ("train.max_samples=9 train.max_steps=5", "train.max_samples=9: not one batch of train.global_batch_size=512"),
        ("data.published_tables=mine", "must be one of dac_sample, criteo_kaggle"),
        ("model.mixes_samples=true", "with model.interaction=dot; leave it out, or use model.interaction=scalar_pairs"),
        ("schedule=warmup schedule.decay_steps=5", "has no effect with schedule=warmup"),
        ("schedule=warmup schedule.warmup_steps=0", "schedule.warmup_steps=0: must be at least 1"),
        ("schedule=cosine", "schedule.decay_steps=0: schedule=cosine needs"),
        ("schedule=warmup_poly schedule.end_factor=0.1", "has no effect with schedule=warmup_poly"),
        ("optimizer=rowwise_adagrad sharding=table_column_wise", "another algorithm"),
        ("optimizer=rowwise_adagrad sharding=grid_shard", "another algorithm"),
        ("optimizer=rowwise_adagrad +sharding.tables.cat_1.types=grid", "sharding.tables.cat_1.types=grid_shard"),
        ("schedule=warmup_poly schedule.decay_start_step=5", "may not start before the warm-up ends"),
        ("model.dropout=1", r"model\.dropout=\[1\.0\]: must be a list of numbers in \[0, 1\)"),
        ("model.dropout=[0.1,0.2,0.3]", r"model\.over_arch has 2 hidden layers; give one rate for all, or 2"),
        ("model.dropout=0.1 model.over_arch=[1]", "model.dropout=.*: has no effect without a hidden layer"),
        ("model.dense_arch=[] model.interaction=projection", "needs its vector; give widths that end with"),
        ("model.numeric=vectors", r"has no effect with model\.numeric=vectors; give model\.dense_arch=\[\]"),
        ("model.interaction=sum", r"has no effect with model\.interaction=sum.*give model\.over_arch=\[\]"),
        ("model.deep_arch=[8]", r"model\.deep_arch=\[8\]: has no effect with model\.interaction=dot"),
        ("model.interaction=dcn model.dcn_full_rank=true model.dcn_low_rank_dim=4", "no effect with model.dcn_full"),
        ("model.batch_norm=true train.global_batch_size=1", "needs at least two rows in a batch"),
        ("optimizer.clip_tables=true", r"has no effect without optimizer\.max_grad_norm"),
        ("optimizer=lamb optimizer.weight_decay=0.1", "lamb has none; use one of sgd, adagrad"),
        ("optimizer=rowwise_adam optimizer.sparse_weight_decay=0.1", "rowwise_adam has none; use one of"),
        ("schedule.threshold=0.01", "has no effect without schedule=plateau or train.early_stop_patience"),
        ("recipe=bars_frappe_x1 model=dlrm_dcn", "published with model=dlrm, dcnv2, crossnetv2, dnn or lr"),
        (
            "model.interaction=scalar_pairs model.mixes_samples=true train.drop_last=false",
            "drop_last=false has no meaning",
        ),
        (
            "runtime.compile=step train.drop_last=false",
            "drop_last=false: not with .*=step, .*give runtime.compile=none",
        ),
        ("runtime.profile_steps=[5,2]", r"runtime.profile_steps=\[5, 2\]"),
        ("+environment.variables={a-b:x}", "not a name of an environment variable"),
        ("train.deterministic=maybe", "must be true, false or layout"),
        ("train.micro_batch_size=64", "has no effect without train.deterministic=layout"),
        (f"{LAYOUT} model.batch_norm=true train.micro_batch_size=7 {OF_64}", "leaves a micro-batch of one row"),
        (f"{LAYOUT} runtime.precision=bf16", "give runtime.precision=fp32"),
        (f"{LAYOUT} runtime.compile=dense", "give runtime.compile=none"),
        (f"{LAYOUT} sharding.qcomm.forward=fp16", "sharding.qcomm: not with train.deterministic=layout"),
        (f"{NO_EVALUATIONS} train.early_stop_patience=2", f"^train.early_stop_patience=2: {ADD_EVALUATIONS}"),
        (f"{NO_EVALUATIONS} schedule=plateau", f"^schedule=plateau: {ADD_EVALUATIONS}"),
        (
            "train.monitor=gauc",
            "^train.monitor=gauc: gauc is over groups of rows; give eval.group_by=COLUMN, or use auc",
        ),
        (
            "train.monitor=auc_torchrec eval.group_by=user",
            "^train.monitor=auc_torchrec: .* logs of events have; use auc",
        ),
        ("train.monitor=acu", "^train.monitor=acu: must be one of auc, gauc"),
        ("train.monitor={auc:1,loss:-1}", "^train.monitor={auc:1,loss:-1}: must be one of auc, gauc"),
        ("train.monitor={auc:0}", "^train.monitor={auc:0}: must be one of auc, gauc"),
        ("train.monitor={}", "^train.monitor={}: must be one of auc, gauc"),
        ("train.monitor=calibration", "^train.monitor=calibration: must be one of"),
        ("train.monitor=ne checkpoint.keep_best=false", "^train.monitor=ne: has no effect with checkpoint.keep_best"),
        ("schedule.factor=0.5", "^schedule.factor=0.5: has no effect with schedule=constant"),
    ],
)
def test_is_refused(overrides: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        validate_new_run(composed("data.path=none", "run.name=x", *overrides.split()))
    assert "\n" not in str(caught.value)


def test_what_must_be_given_is_named() -> None:
    with pytest.raises(UserError, match="run has no value; add run="):
        compose_config(EvaluateConfig, CONFIG_DIR, [], "evaluate")


def test_help_has_the_common_keys_and_help_all_every_key() -> None:
    process = run_module("app.train", "--help", cwd=REPOSITORY)
    assert process.returncode == 0
    assert "python -m app.train" in process.stdout
    assert "train.global_batch_size=512" in process.stdout
    pages = [list(describe(composed(), {}, whole)) for whole in (False, True)]
    listed, every = ({line.split("=")[0].strip() for line in page if "=" in line[:46]} for page in pages)
    assert 15 < len(listed) < 40
    assert listed < every
    assert every >= {key for key, *_ in keys_of(AppConfig)}
    assert f"--help all lists all {len(list(keys_of(AppConfig)))} keys." in pages[0][-1]
    assert not [line for line in pages[1] if len(line) > 120 and "  # " in line]


def test_names_and_paths_are_taken_as_they_are_typed() -> None:
    keys = ["run.name", "data.path", "data.schema", "data.chunk_bytes", "environment.variables.OMP_NUM_THREADS"]
    overrides = [*(f"{key}=2026_11_24" for key in keys), "data.remote.directory=1e3"]
    config = composed(*overrides)
    assert (config.run.name, config.run.dir) == ("2026_11_24", "runs/2026_11_24")
    assert (config.data.path, config.data.schema) == ("2026_11_24", "2026_11_24")
    assert (config.data.chunk_bytes, config.data.remote.directory) == ("2026_11_24", "1e3")
    assert config.environment.variables["OMP_NUM_THREADS"] == "2026_11_24"
    assert compose_config(EvaluateConfig, CONFIG_DIR, ["run=2026_11_24"], "evaluate").run == "2026_11_24"


@pytest.mark.parametrize("schema", [RecommendConfig, EvaluateConfig, VerifyConfig])
def test_help_of_a_command_begins_with_what_must_be_given(schema: type) -> None:
    """With an example, and with every key of a command that has few."""
    defaults = flat_values(schema())
    lines = list(describe(schema(), {}, whole=False))
    required = [key for key, default in defaults.items() if default is MISSING]
    starts = [line for line in lines if line.startswith("  ") and line.strip()[0] != "#"]
    assert [line.split("=")[0].strip() for line in starts[: len(required)]] == required
    text = " ".join(" ".join(lines).split())
    assert all(f"e.g. {key}=" in text for key in required)
    assert all(f" {key}=" in text for key in defaults)


def test_a_recorded_configuration_is_read_back_or_refused() -> None:
    config = composed("data.raw=[a,b]", "data.path=x", "data.memory_budget=1GiB", "schedule=warmup_poly")
    plain = to_plain(config)
    assert convert(AppConfig, plain) == config
    with pytest.raises(ConversionError, match="'speed' not in 'TrainConfig'"):
        convert(AppConfig, {**plain, "train": {**plain["train"], "speed": 1}})
    for damaged in ({"data": 5}, {"model": "x"}, {"data": {"prep": 3}}):
        with pytest.raises(ConversionError):
            convert(AppConfig, {**plain, **damaged})


@pytest.mark.parametrize(
    "overrides",
    [
        ["sharding.types=row_wise"],
        ["sharding.types=[row_wise]"],
        ["train.early_stop_patience=2", "schedule.threshold=0.01", "train.eval_every_steps=5"],
        ["model.dropout=0.2", "model.dense_dropout=[0.1,0.2,0.3]"],
        ["model=lr", "optimizer=adam", "optimizer.sparse_weight_decay=1e-5"],
    ],
)
def test_settings_with_an_effect_are_taken(overrides: list[str]) -> None:
    validate(composed("data.path=none", *overrides))


@pytest.mark.parametrize("overrides", [["model=dcnv2"], ["recipe=bars_criteo_x1"], ["model=lr"]])
def test_bench_refuses_what_it_cannot_measure(overrides: list[str]) -> None:
    config = compose_config(BenchConfig, CONFIG_DIR, overrides, "bench")
    with pytest.raises(UserError, match="bench measures models with a dense_arch whose vectors have a multiple of 4"):
        validate(config)


def test_a_recipe_without_its_files_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = composed("recipe=bars_frappe_x1", "train.max_steps=0")
    assert meta_build.is_wanted(config)
    (tmp_path / "data/frappe_x1").mkdir(parents=True)
    (tmp_path / "data/frappe_x1/train.csv").touch()
    assert not meta_build.is_wanted(config)
