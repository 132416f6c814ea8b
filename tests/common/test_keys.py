"""The limits of every key, held by a table of numbers just inside and just outside; what a declaration says."""

import math

import pytest

from app.config import model, sharding
from app.config.app_config import AppConfig
from app.config.commands import (
    BenchConfig,
    DoctorConfig,
    EvaluateConfig,
    RecommendConfig,
    ReportConfig,
    VerifyConfig,
)
from common.keys import keys_of, values_that_decide_bits
from data_prep.config import PrepConfig
from tests import key_limits as limits
from tests.key_limits import ONE, POSITIVE, SHARE, ZERO, Limits

# key: numbers that are refused, numbers that are taken, what the message says that they must be
OF_PREPARATION: dict[str, Limits] = {
    **dict.fromkeys(("data.workers", "data.synthetic.rows", "data.synthetic.days", "data.remote.tries",
                     "data.max_categories", "data.random.rows", "data.random.max_rows_per_table"), ONE),
    **dict.fromkeys(("data.frequency_threshold", "data.synthetic.seed",
                     "data.random.eval_rows", "data.random.num_dense", "data.random.seed"), ZERO),
    **dict.fromkeys(("data.sampling.negative_drop_rate", "data.random.click_rate"), SHARE),
    "data.split.held_out": limits.BELOW_1,
    **dict.fromkeys(("data.split.seed", "data.sampling.seed", "data.multi_hot.seed"), limits.SEED),
    "data.max_ind_range": ([0, 2**31], [1, 2**31 - 1], "in [1, 2147483647]"),
    "data.remote.pause": ([-1.0, limits.INF, math.nan], [0.0, 9.0], "in [0, inf)"),
    "data.remote.timeout": POSITIVE,
    "data.synthetic.max_cardinality": ([2], [3], "at least 3"),
    "data.synthetic.click_rate": limits.INSIDE,
    "data.synthetic.difficulty": limits.DIFFICULTY,
    "data.synthetic.interaction": ([-0.1, 10.1], [0.0, 10.0], "in [0, 10]"),
    "data.synthetic.drift": ([-0.1, 1.571], [0.0, 1.57], "in [0, 1.5707963267948966]"),
    "data.random.exponent": ([0.0, 100.0], [0.1, 99.9], "in (0, 100)"),
}  # fmt: skip
OF_RUNS: dict[str, Limits] = {
    **OF_PREPARATION,
    "train.micro_batch_size": ([0, 1024], [1, 1023], "at least 1 and below 1024"),
    **dict.fromkeys(("train.local_batch_size", "train.epochs", "train.log_every_steps", "train.early_stop_patience",
                     "eval.global_batch_size", "checkpoint.every_steps", "checkpoint.keep", "data.shuffle_block_rows",
                     "data.shuffle_window_blocks", "data.shuffle_lanes", "data.negatives.per_positive",
                     "model.dcn_num_layers", "model.dcn_low_rank_dim", "model.embedding_dim", "published.train_rows",
                     "published.num_devices", "published.parameters", "topology.nodes",
                     "topology.devices_per_node"), ONE),
    **dict.fromkeys(("train.global_batch_size", "train.max_steps", "train.max_samples", "train.warmup_steps_excluded",
                     "eval.exact_rows", "eval.keep_scores", "train.eval_every_steps", "schedule.warmup_steps",
                     "schedule.decay_start_step", "schedule.decay_steps", "schedule.patience", "schedule.threshold",
                     "schedule.min_lr"), ZERO),
    **dict.fromkeys(("train.max_minutes", "checkpoint.every_minutes", "optimizer.lr", "optimizer.sparse_lr",
                     "optimizer.eps", "optimizer.max_grad_norm", "model.linear", "optimizer.fused_weight_decay",
                     "published.logloss", "published.test_logloss", "published.samples_per_second", "published.rmse",
                     "topology.memory_gib", "topology.memory_gb_per_s", "topology.host_memory_gib",
                     "topology.host_memory_gb_per_s", "topology.host_link_gb_per_s", "topology.intra_host_gb_per_s",
                     "topology.inter_host_gb_per_s", "model.tables.init_std"), POSITIVE),
    **dict.fromkeys(("optimizer.weight_decay", "optimizer.sparse_weight_decay"), limits.DECAY),
    **dict.fromkeys(("model.dropout", "model.dense_dropout"), limits.RATES),
    **dict.fromkeys(("published.auc", "published.test_auc", "published.accuracy", "published.least_auc",
                     "published.hr_at_10", "published.ndcg_at_10", "published.tolerance",
                     "schedule.end_factor"), SHARE),
    **dict.fromkeys(("optimizer.beta1", "optimizer.beta2", "topology.reserve"), limits.BELOW_1),
    **dict.fromkeys(("train.target_auc", "train.target_accuracy", "train.eval_every_fraction",
                     "topology.link_efficiency"), limits.ABOVE_0),
    "sharding.cache_load_factor": limits.INSIDE,
    "sharding.min_partition": ([3, 0], [4, 8], "at least 4"),
    "loss.threshold": ([-0.1, 0.5], [0.0, 0.49], "at least 0 and below 0.5"),
    "train.seed": ([-1, 2**63], [0, 2**63 - 1], f"at least 0 and below {2**63}"),
    "runtime.num_threads": ([0, 4097], [1, 4096], "at least 1 and at most 4096"),
    "runtime.timeout_minutes": ([0.0, 100_000.1], [0.1, 1e5], "above 0 and at most 100000"),
    "schedule.factor": limits.INSIDE,
}  # fmt: skip
OF_COMMANDS: dict[type, dict[str, Limits]] = {
    AppConfig: OF_RUNS,
    BenchConfig: {
        **OF_RUNS,
        **dict.fromkeys(("shape.batch_size", "shape.num_dense", "shape.most_rows"), ONE),
        **dict.fromkeys(("shape.num_embeddings", "shape.bag_sizes"), limits.NOT_EMPTY),
        "seconds": POSITIVE,
    },
    EvaluateConfig: {"global_batch_size": ONE, "exact_rows": ZERO, "keep_scores": ZERO},
    RecommendConfig: {"top_k": ONE},
    VerifyConfig: {"tolerance": limits.TOLERANCE},
    DoctorConfig: {},
    ReportConfig: {},
    model.TableOverride: {"init_std": POSITIVE},
    sharding.TableShardingConfig: {"min_partition": ([3], [4], "at least 4"), "cache_load_factor": limits.INSIDE},
    PrepConfig: OF_PREPARATION,
}  # fmt: skip
OF_RUNTIME = {name: limits for name, limits in OF_RUNS.items() if name.startswith("runtime.")}
for _schema in (EvaluateConfig, RecommendConfig, VerifyConfig):
    OF_COMMANDS[_schema] |= OF_RUNTIME


@pytest.mark.parametrize("schema", OF_COMMANDS, ids=lambda schema: schema.__name__)
def test_every_key_has_its_limits_and_a_meaning(schema: type) -> None:
    limits.check_limits(schema, OF_COMMANDS[schema])


def test_keys_of_training_that_decide_no_bits() -> None:
    """A new key decides unless it is declared otherwise, and named here or in a group of which none decides."""
    deciding = values_that_decide_bits(AppConfig())
    groups = ("baselines", "loss", "model", "optimizer", "runtime", "schedule", "tiny", "train", "data.negatives")
    names = {name for name, *_ in keys_of(AppConfig) if name.startswith(groups)}
    runtime = ("platform", "num_threads", "compile", "timeout_minutes", "profile_steps", "different_releases")
    train = ["local_batch_size", "epochs", "max_steps", "max_samples", "max_minutes", "eval_every_steps"]
    train += ["eval_every_fraction", "eval_grid", "early_stop_patience", "target_auc", "target_accuracy"]
    train += ["log_every_steps", "print_windows", "warmup_steps_excluded", "on_nan", "pipeline", "deterministic"]
    expected = {"baselines", "tiny", *(f"runtime.{name}" for name in runtime), *(f"train.{name}" for name in train)}
    assert {name for name in names if not any(f"{key}.".startswith(f"{name}.") for key in deciding)} == expected
