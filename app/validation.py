"""Values that cannot work are refused before anything is built."""

import math

from app.config import AppConfig, Interaction, ModelConfig, OptimizerName, ScheduleName, TrainConfig, sharding_type
from common.errors import UserError

MOST_MINUTES, MOST_THREADS, MOST_WIDTH = 100_000, 4_096, 1_000_000


def validate(config: AppConfig) -> None:
    """Refuse values that cannot work, before anything is built.

    Raises:
        UserError: names the key, its value and what is allowed.
    """
    train, model, schedule = config.train, config.model, config.schedule
    at_least = {
        "train.global_batch_size": (train.global_batch_size, 1),
        "train.epochs": (train.epochs, 1),
        "train.max_steps": (train.max_steps, 0),
        "train.max_samples": (train.max_samples, 0),
        "train.seed": (train.seed, 0),
        "train.eval_every_steps": (train.eval_every_steps, 1),
        "train.log_every_steps": (train.log_every_steps, 1),
        "train.warmup_steps_excluded": (train.warmup_steps_excluded, 0),
        "eval.global_batch_size": (config.eval.global_batch_size, 1),
        "checkpoint.every_steps": (config.checkpoint.every_steps, 1),
        "checkpoint.keep": (config.checkpoint.keep, 1),
        "data.shuffle_block_rows": (config.data.shuffle_block_rows, 1),
        "data.shuffle_window_blocks": (config.data.shuffle_window_blocks, 1),
        "runtime.num_threads": (config.runtime.num_threads, 1),
        "schedule.warmup_steps": (schedule.warmup_steps, 0),
        "schedule.decay_start_step": (schedule.decay_start_step, 0),
        "schedule.decay_steps": (schedule.decay_steps, 0),
    }
    for key, (value, least) in at_least.items():
        if value is not None and value < least:
            raise UserError(f"{key}={value}: must be at least {least}")
    positive = {
        "optimizer.lr": config.optimizer.lr,
        "optimizer.eps": config.optimizer.eps,
        "runtime.timeout_minutes": config.runtime.timeout_minutes,
        "checkpoint.every_minutes": config.checkpoint.every_minutes,
        "train.max_minutes": train.max_minutes,
    }
    for key, number in positive.items():
        if number is not None and not 0 < number < math.inf:
            raise UserError(f"{key}={number}: must be a finite number above 0")
    if schedule.decay_steps and schedule.decay_start_step < schedule.warmup_steps:
        raise UserError(
            f"schedule.decay_start_step={schedule.decay_start_step}: the decay may not start before the warm-up ends "
            f"(schedule.warmup_steps={schedule.warmup_steps})"
        )
    _validate_train(train)
    _validate_names(config)
    _validate_without_effect(config)
    _validate_model(model)
    sharding_type(config.sharding)
    if config.optimizer.name is OptimizerName.rowwise_adagrad and sharding_type(config.sharding) == "column_wise":
        raise UserError(
            "sharding.types=column_wise: row-wise Adagrad would average over each shard's columns, which is another "
            "algorithm; use table_wise or row_wise, or optimizer=adagrad"
        )


def _validate_train(train: TrainConfig) -> None:
    if train.target_auc is not None and not 0 < train.target_auc <= 1:
        raise UserError(f"train.target_auc={train.target_auc}: must be in (0, 1]")
    if train.seed >= 2**63:
        raise UserError(f"train.seed={train.seed}: must be below 2^63")
    if train.max_samples is not None and train.max_steps is None and train.max_samples < train.global_batch_size:
        raise UserError(
            f"train.max_samples={train.max_samples}: not one batch of train.global_batch_size={train.global_batch_size}"
        )


def _validate_names(config: AppConfig) -> None:
    named = {"run.name": config.run.name, "run.dir": config.run.dir, "checkpoint.resume": config.checkpoint.resume}
    for key, text in named.items():
        if not text.strip():
            raise UserError(f"{key}=: must not be empty")
    if config.runtime.timeout_minutes > MOST_MINUTES:
        raise UserError(f"runtime.timeout_minutes={config.runtime.timeout_minutes}: must be at most {MOST_MINUTES}")
    if (config.runtime.num_threads or 0) > MOST_THREADS:
        raise UserError(f"runtime.num_threads={config.runtime.num_threads}: must be at most {MOST_THREADS}")


def _validate_without_effect(config: AppConfig) -> None:
    """A knob that would do nothing is refused."""
    schedule, optimizer = config.schedule, config.optimizer
    if schedule.name is ScheduleName.constant:
        for key in ("warmup_steps", "decay_start_step", "decay_steps"):
            if getattr(schedule, key):
                raise UserError(f"schedule.{key}={getattr(schedule, key)}: has no effect with schedule=constant")
    if optimizer.name is OptimizerName.sgd and optimizer.eps is not None:
        raise UserError(f"optimizer.eps={optimizer.eps}: has no effect with optimizer=sgd")
    if optimizer.name is not OptimizerName.sgd and optimizer.eps is None:
        raise UserError(f"optimizer.eps=null: optimizer={optimizer.name.value} needs one, such as 1e-10")


def _validate_model(model: ModelConfig) -> None:
    widths = {"model.dense_arch": model.dense_arch, "model.over_arch": model.over_arch}
    for key, layers in widths.items():
        if not layers or not 1 <= min(layers) <= max(layers) <= MOST_WIDTH:
            raise UserError(f"{key}={layers}: must be a list of widths from 1 to {MOST_WIDTH}, such as [512,256,16]")
    if model.embedding_dim < 4 or model.embedding_dim % 4:
        raise UserError(f"model.embedding_dim={model.embedding_dim}: must be a multiple of 4 (FBGEMM)")
    if model.dense_arch[-1] != model.embedding_dim:
        raise UserError(
            f"model.dense_arch={model.dense_arch}: its last width must be model.embedding_dim={model.embedding_dim}"
        )
    if model.over_arch[-1] != 1:
        raise UserError(f"model.over_arch={model.over_arch}: its last width must be 1 (the logit)")
    if model.interaction_itself and model.interaction is not Interaction.dot:
        raise UserError(
            f"model.interaction_itself=true: has no meaning with model.interaction={model.interaction.value}; "
            "use model.interaction=dot"
        )
