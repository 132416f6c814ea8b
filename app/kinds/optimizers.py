"""Optimizers by name: one is a row of `OptimizerName`, its values in conf/optimizer, and its test."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from common.table_rows import row_with

EPS = {"eps": "1e-8"}  # keys of `optimizer` that an algorithm needs, each with a usual value
EPS_AND_BETAS = {**EPS, "beta1": "0.9", "beta2": "0.999"}
FIRST, SECOND = {"exp_avg": "momentum1"}, {"exp_avg_sq": "exp_avg_sq"}
SUM = {"sum": "momentum1"}


class FusedDecay(Enum):
    """FBGEMM's WeightDecayMode. l2: added to a row's gradient; decouple: the row is multiplied by 1 - rate * decay."""

    l2 = "l2"
    decouple = "decouple"


DECOUPLED = (FusedDecay.decouple,)  # FBGEMM's Adam and LAMB know no other, whatever the mode says


@dataclass(frozen=True)
class Algorithm:
    """What is to know of an optimizer.

    Attributes:
        torch: its class, "module:class", for tables that FBGEMM does not update and, unless others are named, layers.
        fbgemm: its name in FBGEMM's EmbOptimType; None: FBGEMM lacks it, so that torch updates all tables.
        fused_on_cpu: whether FBGEMM has it on CPUs too.
        settings: keys of `optimizer` that it needs, each with a usual value.
        arguments: further ones of `torch`.
        layers: the class for dense parameters, where `torch` is for tables only.
        plain: the optimizer for dense parameters beside it, where it is of rows.
        state: torch's names of its state with a value for each element, and FBGEMM's.
        row_state: likewise with a value for each row of a table.
        needs_whole_rows: with a part of a row's columns in a shard it would be another algorithm.
        has_weight_decay: torch's class adds L2 to gradients by `weight_decay`.
        fused_decay: what FBGEMM's weight decay may be of it, on the rows of a batch.
        moves_all_rows: torch's moves every row at every step, FBGEMM's those of the batch.
    """

    torch: str
    fbgemm: str | None = None
    fused_on_cpu: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, bool] = field(default_factory=dict)
    layers: str | None = None
    plain: str | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    row_state: Mapping[str, str] = field(default_factory=dict)
    needs_whole_rows: bool = False
    has_weight_decay: bool = True
    fused_decay: Collection["FusedDecay"] = ()
    moves_all_rows: bool = False

    def state_elements(self, dim: int) -> int:
        """Elements of state beside a row of `dim` elements."""
        return dim * len(self.state) + len(self.row_state)


_ROW_ADAM = "app.optimizer.adams:RowAdam"


class OptimizerName(Enum):
    """The algorithm for tables (fused into FBGEMM's backward where it has it) and for dense parameters.

    rowwise_*: one second moment a row of a table, the mean over the row; dense parameters get the plain one.
    adam: Kingma and Ba 2015; lamb: You et al. 2020, its trust ratio per row of a table, per dense tensor.
    """

    sgd = "sgd", Algorithm("torch.optim:SGD", "EXACT_SGD", True)
    adagrad = (
        "adagrad",
        Algorithm("torch.optim:Adagrad", "EXACT_ADAGRAD", True, EPS, state=SUM),
    )
    rowwise_adagrad = (
        "rowwise_adagrad",
        Algorithm(
            "torchrec.optim.rowwise_adagrad:RowWiseAdagrad",
            "EXACT_ROWWISE_ADAGRAD",
            True,
            EPS,
            plain="adagrad",
            row_state=SUM,
            needs_whole_rows=True,
            fused_decay=(FusedDecay.l2, FusedDecay.decouple),
        ),
    )
    adam = (
        "adam",
        Algorithm(
            "torch.optim:Adam",
            "ADAM",
            settings=EPS_AND_BETAS,
            arguments={"fused": True},
            state={**FIRST, **SECOND},
            fused_decay=DECOUPLED,
            moves_all_rows=True,
        ),
    )
    rowwise_adam = (
        "rowwise_adam",
        Algorithm(
            _ROW_ADAM,
            "PARTIAL_ROWWISE_ADAM",
            settings=EPS_AND_BETAS,
            arguments={"rowwise": True, "trust": False},
            plain="adam",
            state=FIRST,
            row_state=SECOND,
            needs_whole_rows=True,
            has_weight_decay=False,
            fused_decay=DECOUPLED,
        ),
    )
    lamb = (
        "lamb",
        Algorithm(
            _ROW_ADAM,
            "LAMB",
            settings=EPS_AND_BETAS,
            arguments={"rowwise": False, "trust": True},
            layers="app.optimizer.adams:Lamb",
            state={**FIRST, **SECOND},
            needs_whole_rows=True,
            has_weight_decay=False,
            fused_decay=DECOUPLED,
        ),
    )
    rowwise_lamb = (
        "rowwise_lamb",
        Algorithm(
            _ROW_ADAM,
            "PARTIAL_ROWWISE_LAMB",
            settings=EPS_AND_BETAS,
            arguments={"rowwise": True, "trust": True},
            plain="lamb",
            state=FIRST,
            row_state=SECOND,
            needs_whole_rows=True,
            has_weight_decay=False,
            fused_decay=DECOUPLED,
        ),
    )

    _value_: str
    algorithm: Algorithm
    __new__ = row_with("algorithm")

    @property
    def plain(self) -> "OptimizerName":
        """The optimizer for dense parameters beside this one of tables."""
        return OptimizerName[self.algorithm.plain] if self.algorithm.plain else self
