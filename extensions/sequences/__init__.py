"""Logs of events, and HSTU, which learns from a user's history, as in MLPerf's DLRMv4 (docs/sequences.md)."""

from pathlib import Path
from typing import Any

from app.kinds.models import ModelKind, ModelParts
from app.kinds.published import PublishedTables
from common.command import Command
from common.extensions import Core, KeyGroup, ReadyMadeValues
from extensions.sequences.keys import SequencesConfig, SyntheticEventsConfig
from extensions.sequences.kinds import EVENT_LOG, SOURCES
from extensions.sequences.validate import refuse_without_model

# MLPerf 6.1: Yambda 5b with extensions/sequences/conf_data/events/yambda.yaml.
YAMBDA_5B = {
    "user": 1000001,
    "user_x_artist": 100000000,
    "user_x_album": 40000000,
    "user_x_hour": 24000000,
    "item_x_hour": 40000000,
    "artist_x_hour": 32000000,
    "user_x_is_organic": 2000000,
    "user_x_artist_x_hour": 40000000,
    "item": 9390624,
    "artist": 1293395,
    "album": 3367692,
}


def register(core: Core) -> None:
    """Add the model, its keys and its ready-made values."""
    core.add(
        EVENT_LOG,
        *SOURCES,
        ReadyMadeValues("app", Path(__file__).parent / "conf"),
        ReadyMadeValues("data_prep", Path(__file__).parent / "conf_data"),
        KeyGroup("DataConfig", "synthetic_events", SyntheticEventsConfig),
        PublishedTables("mlperf_v4", YAMBDA_5B, 0, EVENT_LOG, schema_of_yambda),
        KeyGroup(
            "AppConfig",
            "sequences",
            SequencesConfig,
            refuse_without_model,
            sample_keys=("min_history", "window_seconds", "eval_window"),
        ),
        ModelKind(
            "hstu",
            "model=hstu",
            EVENT_LOG,
            model_parts,
            instead_of_source="data.source=synthetic_events data.path=data/synthetic_events",
            group_feature="user",
            over="users",
            eval_split="val",
            commands="train, evaluate, recommend, plan and verify know HSTU",
        ),
        Command(
            name="import-events",
            module="extensions.sequences.prepared",
            function="extensions.sequences.prepared:main",
            summary="MLPerf's prepared events of DLRMv4 to Parquet",
            schema="extensions.sequences.keys:ImportConfig",
            config="schema",
            config_dir=Path(__file__).parent,
        ),
    )


def model_parts() -> ModelParts:
    """Import the model's modules, which need torch, and return their functions."""
    from extensions.sequences import event_log, hstu, labels, metrics, ranking, validate

    return ModelParts(
        tables=hstu.tables_of_events,
        model=hstu.hstu,
        open_splits=event_log.open_log,
        bag_sizes=hstu.bag_sizes,
        tasks=labels.tasks,
        loss_factor=hstu.loss_factor,
        require_device=validate.require_device,
        require_labels=labels.refuse_one_class,
        group_metrics=metrics.user_metrics,
        rank=ranking.score_items,
    )


def schema_of_yambda() -> dict[str, Any]:
    """Return the schema of Yambda's events in a manifest's form."""
    from data_prep.parsing.table_yaml import schema_path
    from extensions.sequences.event_yaml import load_event_schema

    return load_event_schema(schema_path("yambda")).to_manifest()
