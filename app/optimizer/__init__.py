"""Optimizers: fused into FBGEMM's backward for tables, the same mathematics for dense parameters; schedules."""

from app.optimizer.build import make_optimizer, set_learning_rate
from app.optimizer.schedule import learning_rate
from app.optimizer.tables import fused_params, has_fused, set_step

__all__ = ["fused_params", "has_fused", "learning_rate", "make_optimizer", "set_learning_rate", "set_step"]
