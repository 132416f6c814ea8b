"""Values that cannot work are refused before anything is built: each group's own checks, and those across groups."""

from app.config import AppConfig
from app.config.data import validate_data
from app.config.environment import validate_environment
from app.config.loss import validate_loss
from app.config.model import validate_model
from app.config.optimizer import validate_optimizer, validate_schedule
from app.config.published import validate_published
from app.config.record import validate_record
from app.config.runtime import validate_runtime
from app.config.sharding import validate_sharding
from app.config.topology import validate_topology
from app.config.train import validate_checkpoint, validate_eval, validate_names, validate_train


def validate(config: AppConfig) -> None:
    """Refuse values that cannot work, before anything is built.

    Raises:
        UserError: names the key, its value and what is allowed.
    """
    validate_train(config.train)
    validate_eval(config.eval)
    validate_checkpoint(config.checkpoint)
    validate_names(config.run, config.checkpoint)
    validate_data(config.data)
    validate_runtime(config.runtime)
    validate_optimizer(config.optimizer)
    validate_schedule(config.schedule)
    validate_model(config.model)
    validate_loss(config.loss)
    validate_published(config.published)
    validate_record(config.record)
    validate_sharding(config.sharding, config.optimizer.name)
    validate_topology(config.topology)
    validate_environment(config.environment)
