"""`model.tables`: how tables are made, all or some of them. Formulas and sources: docs/models.md."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from common.compose import ConversionError, convert
from common.errors import UserError
from common.keys import check_keys, key


class TableKind(Enum):
    """One row per category; quotient–remainder (Shi et al. 2019); mixed-dimension (Ginart et al. 2019)."""

    plain = "plain"
    qr = "qr"
    mixed_dimension = "mixed_dimension"


class QROperation(Enum):
    """Combinations of a quotient's and a remainder's row; pooled_mult multiplies after pooling, the others before."""

    mult = "mult"
    add = "add"
    concat = "concat"
    pooled_mult = "pooled_mult"


class Pooling(Enum):
    """Combinations of a bag's rows."""

    sum = "sum"
    mean = "mean"
    weighted = "weighted"


class RowWeights(Enum):
    """Weights of weighted pooling: one per category, trained or not."""

    learned = "learned"
    fixed = "fixed"


class TableInit(Enum):
    """Initial values: uniform as in TorchRec or facebookresearch/dlrm, or normal."""

    torchrec = "torchrec"
    facebookresearch = "facebookresearch"
    normal = "normal"


class Storage(Enum):
    """Storage type of a table's values; arithmetic is fp32."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


@dataclass(frozen=True)
class TableConfig:
    """Settings of a table. Null: in an override, model.tables' value; in model.tables, the default given here."""

    kind: TableKind | None = key(None, "kind of the table; null: plain")
    qr_operation: QROperation | None = key(None, "qr: combination of both rows; null: mult")
    qr_collisions: int | None = key(None, "qr: rows of the remainder table; null: 4", at_least=2)
    dim: int | None = key(None, "mixed_dimension: width of the table; null: by the alpha rule")
    pooling: Pooling | None = key(None, "combination of a bag's rows; null: sum")
    row_weights: RowWeights | None = key(None, "weighted: whether weights are trained; null: learned")
    init: TableInit | None = key(None, "initial values; null: torchrec")
    init_std: float | None = key(None, "normal: its standard deviation; null: 0.01", above=0)
    storage: Storage | None = key(None, "storage type of values; null: fp32")


@dataclass(frozen=True)
class TableOverride(TableConfig):
    """Settings of one table, beside model.tables' own."""

    row_weights_path: str | None = key(
        None, "weighted: a .npy file of its weights, [rows] float; learned ones start there"
    )


@dataclass(frozen=True)
class TablesConfig(TableConfig):
    """Settings of all tables, and which are exceptions."""

    min_rows: int | None = key(None, "tables with at most this number of rows are plain; null: 200", at_least=0)
    alpha: float | None = key(
        None, "mixed_dimension: how fast widths fall with the number of rows; null: 0.3", at_least=0
    )
    power_of_2: bool | None = key(None, "mixed_dimension: round widths to powers of 2; null: true")
    shared: dict[str, list[str]] = key({}, "features of each shared table, by the table's name")
    overrides: dict[str, Any] = key({}, "keys of TableOverride by feature or shared table")


DEFAULTS = TableConfig(
    TableKind.plain, QROperation.mult, 4, None, Pooling.sum, RowWeights.learned, TableInit.torchrec, 0.01, Storage.fp32
)
DEFAULT_MIN_ROWS = 200
SETTINGS = [item.name for item in fields(TableConfig)]

_HAS_USE: dict[str, tuple[str, Callable[[TableConfig], bool]]] = {
    "qr_operation": ("kind=qr", lambda table: table.kind is TableKind.qr),
    "qr_collisions": ("kind=qr", lambda table: table.kind is TableKind.qr),
    "dim": ("kind=mixed_dimension", lambda table: table.kind is TableKind.mixed_dimension),
    "alpha": ("kind=mixed_dimension", lambda table: table.kind is TableKind.mixed_dimension and table.dim is None),
    "power_of_2": ("kind=mixed_dimension", lambda table: table.kind is TableKind.mixed_dimension and table.dim is None),
    "row_weights": ("pooling=weighted", lambda table: table.pooling is Pooling.weighted),
    "row_weights_path": ("pooling=weighted", lambda table: table.pooling is Pooling.weighted),
    "init_std": ("init=normal", lambda table: table.init is TableInit.normal),
}


def override_of(tables: TablesConfig, name: str) -> TableOverride:
    """Return the settings under `model.tables.overrides.<name>`; all null if there are none."""
    override = tables.overrides.get(name, {})
    if isinstance(override, TableOverride):
        return override
    if not override:
        return TableOverride()  # avoids OmegaConf, which would take 4 ms per table
    try:
        return convert(TableOverride, override)
    except ConversionError as error:
        raise UserError(
            f"model.tables.overrides.{name}={override}: {error}; its keys are "
            f"{', '.join(item.name for item in fields(TableOverride))}"
        ) from error


def settings_of(tables: TablesConfig, name: str | None = None) -> TableOverride:
    """Return the settings in force for a table with an override, or for tables without one."""
    override = TableOverride() if name is None else override_of(tables, name)
    levels = [override, tables, DEFAULTS]
    values = (next((v for level in levels if (v := getattr(level, key)) is not None), None) for key in SETTINGS)
    return replace(TableOverride(*values), row_weights_path=override.row_weights_path)


def validate_tables(tables: TablesConfig, embedding_dim: int) -> None:
    """Raise UserError for values that cannot work or would do nothing."""
    every = settings_of(tables)
    overrides = {name: override_of(tables, name) for name in tables.overrides}
    by_table = {name: settings_of(tables, name) for name in overrides}
    _require_use("model.tables", tables, [every, *by_table.values()])
    for name, settings in by_table.items():
        _require_use(f"model.tables.overrides.{name}", overrides[name], [settings])
    if tables.min_rows is not None and every.kind is TableKind.plain:
        raise UserError(f"model.tables.min_rows={tables.min_rows}: has no effect with model.tables.kind=plain")
    levels: dict[str, TableConfig] = {"model.tables": tables}
    levels |= {f"model.tables.overrides.{name}": override for name, override in overrides.items()}
    for path, level in levels.items():
        check_keys(level, f"{path}.")
        if level.dim is not None and (level.dim < 4 or level.dim % 4 or level.dim > embedding_dim):
            raise UserError(
                f"{path}.dim={level.dim}: must be a multiple of 4 (FBGEMM), at most model.embedding_dim={embedding_dim}"
            )
    for path, table in zip(levels, [every, *by_table.values()], strict=True):
        pooled_first = table.kind is TableKind.qr and table.qr_operation is QROperation.pooled_mult
        if pooled_first and table.pooling is Pooling.weighted:
            raise UserError(
                f"{path}.qr_operation=pooled_mult: pools before it multiplies, so pooling=weighted cannot "
                "weight products; use qr_operation=mult"
            )
    concat = [t for t in (every, *by_table.values()) if t.kind is TableKind.qr and t.qr_operation is QROperation.concat]
    if concat and embedding_dim % 8:
        raise UserError(
            f"model.tables.qr_operation=concat: model.embedding_dim={embedding_dim} does not divide into two halves "
            "that are multiples of 4 (FBGEMM)"
        )


def _require_use(path: str, config: TableConfig, tables: Iterable[TableConfig]) -> None:
    """Require that each setting of `config` matters to one of the tables."""
    for name, (owner, has_use) in _HAS_USE.items():
        value = getattr(config, name, None)
        if value is not None and not any(has_use(table) for table in tables):
            plain_value = value.value if isinstance(value, Enum) else value
            raise UserError(f"{path}.{name}={plain_value}: has no effect without {owner}")
