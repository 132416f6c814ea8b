"""Kinds of models: one is a row of `MODELS`, its settings in app/config, and the file of its modules.

Functions are text, "module:function", loaded where they are called; their parameters are those of DLRM's.
"""

from dataclasses import dataclass

from app.kinds.metrics import USERS
from data_prep.dataset.kinds import EVENT_LOG, ROWS, DatasetKind


@dataclass(frozen=True)
class ModelKind:
    """What is to know of a kind of model.

    Attributes:
        label: its name in messages.
        section: the key of `model` with its settings, beside which DLRM's have no effect; empty: `model` itself.
        learns_from: the datasets that it learns from.
        remedy: what to give for a dataset of another kind; empty: what that kind's row says.
        instead_of_source: what to give for a source of another kind.
        instead_of_sizes: what to give app.plan where it has no sizes of tables.
        has_plain_tables: whether numbers of rows alone describe its tables.
        tables, model: make its tables and itself, of ModelConfig and `Features`.
        reader: opens a dataset's splits, of root, manifest and AppConfig.
        bag_sizes: mean ids a bag by key of its ids, of AppConfig, features, means in shards and schema.
        rank: scores candidates for app.recommend.
        group_metrics: metrics of groups, of logits, labels, groups and, of eval.group_by, rows.
        mlperf_values: what MLPerf's rules log of a run.
        flops: FLOPs of a sample, of ModelConfig and numbers of features; empty: they depend on the sample.
        loss_factor: what the mean loss over samples and tasks is multiplied by; empty: 1.
        plan_notes: what a plan's forecast leaves out; empty: nothing.
        group_feature: the feature whose ids are the groups of evaluations; empty: eval.group_by names it.
        over: what such metrics are a mean over, without eval.group_by.
        eval_split: that app.evaluate takes where none is given.
        has_blocks: MLPerf's rules have blocks between evaluations, not epochs.
        obstacle_to_baselines: why there are none to compare with; empty: there are.
        commands: those alone that know it; empty: all do, with all their keys.
    """

    label: str
    section: str
    learns_from: DatasetKind
    instead_of_source: str
    instead_of_sizes: str
    tables: str
    model: str
    reader: str
    bag_sizes: str
    rank: str
    group_metrics: str
    mlperf_values: str
    remedy: str = ""
    has_plain_tables: bool = False
    flops: str = ""
    loss_factor: str = ""
    plan_notes: str = ""
    group_feature: str = ""
    over: str = ""
    eval_split: str = "test"
    has_blocks: bool = False
    obstacle_to_baselines: str = ""
    commands: str = ""


DLRM = ModelKind(
    "DLRM",
    "",
    ROWS,
    remedy="give model=hstu (docs/sequences.md)",
    instead_of_source="model=hstu",
    instead_of_sizes="rows of each table, such as [1000,7], or mlperf_v2",
    tables="app.model.make:tables_of_rows",
    model="app.model.make:dlrm",
    reader="app.data.split:RowSplits",
    bag_sizes="app.sharding.from_config:bag_sizes_of_rows",
    rank="app.recommend:score_rows",
    group_metrics="app.metrics.users:group_metrics",
    mlperf_values="app.trackers.mlperf:values_of_dlrm",
    has_plain_tables=True,
    flops="app.model.flops:training_flops",
)
HSTU = ModelKind(
    "model=hstu",
    "hstu",
    EVENT_LOG,
    instead_of_source="data.source=synthetic_events data.path=data/synthetic_events",
    instead_of_sizes="mlperf_v4, or data.path of events",
    tables="app.model.hstu:tables_of_events",
    model="app.model.hstu:hstu",
    reader="app.data.events:open_log",
    bag_sizes="app.model.hstu:bag_sizes",
    rank="app.recommend:score_items",
    group_metrics="app.metrics.users:user_metrics",
    mlperf_values="app.trackers.mlperf:values_of_hstu",
    loss_factor="app.model.hstu:loss_factor",
    plan_notes="app.model.hstu:plan_notes",
    group_feature="user",
    over=USERS,
    eval_split="val",
    has_blocks=True,
    obstacle_to_baselines="baselines are of rows, and this model learns from events; give baselines=false",
    commands="train, evaluate, recommend, plan and verify know HSTU",
)
MODELS = (DLRM, HSTU)
