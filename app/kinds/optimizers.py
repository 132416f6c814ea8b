"""Optimizers by name; each is a row of `OptimizerName`, with values in conf/optimizer and a test."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from common.table_rows import row_with

EPS = {"eps": "1e-8"}  # keys of `optimizer` that an algorithm needs, with usual values
EPS_AND_BETAS = {**EPS, "beta1": "0.9", "beta2": "0.999"}
FIRST, SECOND = {"exp_avg": "momentum1"}, {"exp_avg_sq": "exp_avg_sq"}
SUM = {"sum": "momentum1"}


class FusedDecay(Enum):
    """FBGEMM's WeightDecayMode. l2: add decay to a row's gradient; decouple: multiply the row by 1 - rate * decay."""

    l2 = "l2"
    decouple = "decouple"


DECOUPLED = (FusedDecay.decouple,)  # FBGEMM's Adam and LAMB know no other mode, whatever is set


@dataclass(frozen=True)
class Algorithm:
    """Properties of an optimizer.

    Attributes:
        torch: its class, "module:class", for tables that FBGEMM does not update and, unless `layers` is given, for
            layers.
        fbgemm: its name in FBGEMM's EmbOptimType; None: FBGEMM lacks it, so torch updates all tables.
        fused_on_cpu: whether FBGEMM has it on CPUs too.
        settings: keys of `optimizer` that it needs, with usual values.
        arguments: further arguments of `torch`.
        layers: class for dense parameters, if `torch` is for tables only.
        plain: the optimizer for dense parameters, if this one is row-wise.
        state: torch's names of state with a value per element, and FBGEMM's names.
        row_state: the same for state with a value per row of a table.
        needs_whole_rows: whether a shard with only some columns of a row would change the algorithm.
        has_weight_decay: whether torch's class adds L2 to gradients by `weight_decay`.
        fused_decay: modes of weight decay that FBGEMM can apply with it, to the rows of a batch.
        moves_all_rows: whether torch's class updates all rows at every step; FBGEMM updates only those in the batch.
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
        """Return the number of elements of state beside a row of `dim` elements."""
        return dim * len(self.state) + len(self.row_state)


_ROW_ADAM = "app.optimizer.adams:RowAdam"


class OptimizerName(Enum):
    """The algorithm for tables (fused into FBGEMM's backward if FBGEMM has it) and for dense parameters.

    rowwise_*: one second moment per row of a table, the mean over the row; dense parameters use the plain algorithm.
    adam: Kingma and Ba 2015; lamb: You et al. 2020, with a trust ratio per row of a table and per dense tensor.
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
        """Optimizer for dense parameters that goes with this one for tables."""
        return OptimizerName[self.algorithm.plain] if self.algorithm.plain else self
