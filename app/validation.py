"""Values that cannot work are refused before anything is built."""

from app.config import AppConfig, Interaction, ModelConfig, OptimizerName, sharding_type
from common.errors import UserError


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
        "runtime.timeout_minutes": config.runtime.timeout_minutes,
        "checkpoint.every_minutes": config.checkpoint.every_minutes,
    }
    for key, number in positive.items():
        if number is not None and not number > 0:
            raise UserError(f"{key}={number}: must be above 0")
    if train.target_auc is not None and not 0 < train.target_auc <= 1:
        raise UserError(f"train.target_auc={train.target_auc}: must be in (0, 1]")
    if schedule.decay_steps and schedule.decay_start_step < schedule.warmup_steps:
        raise UserError(
            f"schedule.decay_start_step={schedule.decay_start_step}: the decay may not start before the warm-up ends "
            f"(schedule.warmup_steps={schedule.warmup_steps})"
        )
    _validate_model(model)
    sharding_type(config.sharding)
    if config.optimizer.name is OptimizerName.rowwise_adagrad and sharding_type(config.sharding) == "column_wise":
        raise UserError(
            "sharding.types=column_wise: row-wise Adagrad would average over each shard's columns, which is another "
            "algorithm; use table_wise or row_wise, or optimizer=adagrad"
        )


def _validate_model(model: ModelConfig) -> None:
    widths = {"model.dense_arch": model.dense_arch, "model.over_arch": model.over_arch}
    for key, layers in widths.items():
        if not layers or min(layers) < 1:
            raise UserError(f"{key}={layers}: must be a list of widths above 0, such as [512,256,16]")
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
