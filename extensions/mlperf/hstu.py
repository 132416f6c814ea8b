"""Values that MLPerf's rules for DLRMv4 log of a run of HSTU, the model of the extension `sequences`."""

from operator import attrgetter
from typing import Any

from app.config import AppConfig
from common.documents import Json

OPTIMIZERS = {"adam": "Adam", "rowwise_adagrad": "RowWiseAdagrad"}  # names that the rules have for ours
PRECISIONS = {"bf16": "bfloat16"}
BY_PRECISION = ("bf16", "fp16", "fp32")  # lowest first: 8, 11 and 24 bits of a significand


def values_of_hstu(keys: Any, config: AppConfig, world_size: int) -> Json:
    """Return the values that the rules for DLRMv4 (Training 6.1) require."""
    optimizer, arithmetic = config.optimizer, config.runtime.precision
    dense_name, sparse_name = optimizer.dense_name.value, optimizer.name.value
    precision = "fp32" if arithmetic is None else arithmetic.value
    qcomm = config.sharding.qcomm
    comm_precision = min(qcomm.forward.value, qcomm.backward.value, key=BY_PRECISION.index)
    return {
        keys.OPT_NAME: OPTIMIZERS.get(dense_name, dense_name),
        keys.OPT_BASE_LR: optimizer.lr,
        keys.OPT_ADAM_BETA_1: optimizer.beta1,
        keys.OPT_ADAM_BETA_2: optimizer.beta2,
        keys.OPT_ADAM_EPSILON: optimizer.eps,
        keys.OPT_WEIGHT_DECAY: 0.0,
        keys.OPT_GRADIENT_CLIP_NORM: optimizer.max_grad_norm,
        keys.OPT_SPARSE_NAME: OPTIMIZERS.get(sparse_name, sparse_name),
        keys.OPT_SPARSE_BASE_LR: optimizer.table_lr,
        keys.OPT_LR_WARMUP_STEPS: config.schedule.warmup_steps,
        keys.OPT_LR_WARMUP_START_LR: 0.0,
        keys.MAX_SEQUENCE_LENGTH: attrgetter("sequences.hstu.max_seq_len")(config),
        keys.EVAL_EVERY_DATA_PCT: config.train.eval_every_fraction,
        keys.LOWEST_NUMERICAL_PRECISION_IN_LINEAR: PRECISIONS.get(precision, precision),
        keys.LOWEST_NUMERICAL_PRECISION_IN_ATTN: PRECISIONS.get(precision, precision),
        keys.LOWEST_NUMERICAL_PRECISION_IN_COMM: PRECISIONS.get(comm_precision, comm_precision),
        keys.TENSOR_PARALLELISM: 1,
        keys.PIPELINE_PARALLELISM: 1,
        keys.CONTEXT_PARALLELISM: 1,
        keys.EXPERT_PARALLELISM: 1,
        keys.MICRO_BATCH_SIZE: config.train.global_batch_size // world_size,
        keys.CONFIG_FILENAME: "config.yaml",
    }
