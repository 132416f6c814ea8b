"""Tables other than a row for each category: quotient–remainder, mixed dimensions, weighted rows (docs/models.md)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from app.config.kinds import TableForms
from common.extensions import Core, KeyGroup, later
from common.keys import key, shown

# One row per category; quotient–remainder (Shi et al. 2019); mixed-dimension (Ginart et al. 2019).
TableKind: TypeAlias = Literal["plain", "qr", "mixed_dimension"]
# Combinations of a quotient's and a remainder's row; pooled_mult multiplies after pooling, the others before.
QROperation: TypeAlias = Literal["mult", "add", "concat", "pooled_mult"]
# Weights of a bag's rows: one per category, trained or not.
RowWeights: TypeAlias = Literal["learned", "fixed"]


@dataclass(frozen=True)
class FormKeys:
    """Keys of all tables, and of the override of one."""

    kind: TableKind | None = key(None, "kind of the table; null: plain")
    qr_operation: QROperation | None = key(None, "qr: combination of both rows; null: mult")
    qr_collisions: int | None = key(None, "qr: rows of the remainder table; null: 4", at_least=2)
    dim: int | None = key(None, "mixed_dimension: width of the table; null: by the alpha rule")
    row_weights: RowWeights | None = key(None, "weigh a bag's rows, one weight per category; null: no weights")


@dataclass(frozen=True)
class OverrideKeys:
    """Keys of one table alone."""

    row_weights_path: str | None = key(None, "a .npy file of its weights, [rows] float; learned ones start there")


@dataclass(frozen=True)
class CommonKeys:
    """Keys of all tables together."""

    min_rows: int | None = key(None, "tables with at most this number of rows are plain; null: 200", at_least=0)
    alpha: float | None = key(
        None, "mixed_dimension: how fast widths fall with the number of rows; null: 0.3", at_least=0
    )
    power_of_2: bool | None = key(None, "mixed_dimension: round widths to powers of 2; null: true")


def faults(levels: Mapping[str, Any], resolved: Mapping[str, Any], embedding_dim: int) -> Iterator[str]:
    """Yield messages of settings that cannot work or would do nothing.

    levels: given settings of model.tables and of each override, by path. resolved: those in force for these tables.
    """
    for path, level in levels.items():
        # A setting for all tables has a use if only one table, with its override, uses it.
        users = resolved.values() if path == "model.tables" else [resolved[path]]
        kinds = [table.kind for table in users]
        ruled = [table.kind for table in users if table.dim is None]  # whose width is not given
        for names, kind, with_use in (
            (("qr_operation", "qr_collisions"), "qr", kinds),
            (("dim",), "mixed_dimension", kinds),
            (("alpha", "power_of_2"), "mixed_dimension", ruled),
        ):
            for name in names:
                value = getattr(level, name, None)
                if value is not None and kind not in with_use:
                    yield f"{path}.{name}={shown(value)}: has no effect without kind={kind}"
        weights_path = getattr(level, "row_weights_path", None)
        if weights_path is not None and resolved[path].row_weights is None:
            yield f"{path}.row_weights_path={weights_path}: has no effect without row_weights=learned or fixed"
        if level.dim is not None and (level.dim < 4 or level.dim % 4 or level.dim > embedding_dim):
            yield (
                f"{path}.dim={level.dim}: must be a multiple of 4 (FBGEMM), at most model.embedding_dim={embedding_dim}"
            )
    tables = levels["model.tables"]
    if tables.min_rows is not None and resolved["model.tables"].kind in (None, "plain"):
        yield f"model.tables.min_rows={tables.min_rows}: has no effect with model.tables.kind=plain"
    for path, table in resolved.items():
        operation = table.qr_operation if table.kind == "qr" else None
        if table.row_weights is not None and table.pooling == "mean":
            yield f"{path}.row_weights={table.row_weights}: not with pooling=mean; use pooling=sum"
        if operation == "pooled_mult" and table.row_weights is not None:
            yield (
                f"{path}.qr_operation=pooled_mult: pools before it multiplies, so row_weights cannot weight products; "
                "use qr_operation=mult"
            )
        if operation == "concat" and embedding_dim % 8:
            yield (
                f"model.tables.qr_operation=concat: model.embedding_dim={embedding_dim} does not divide into two "
                "halves that are multiples of 4 (FBGEMM)"
            )


def register(core: Core) -> None:
    """Add the keys to `model.tables`, and the tables that they ask for."""
    arch = "extensions.special_tables.arch"
    core.add(
        KeyGroup("TableConfig", "", FormKeys),
        KeyGroup("TableOverride", "", OverrideKeys),
        KeyGroup("TablesConfig", "", CommonKeys),
        TableForms(
            faults, later(f"{arch}:embedding"), later(f"{arch}:SpecialSparseArch"), later(f"{arch}:served_vectors")
        ),
    )
