"""Logs of events, and HSTU, which learns from a user's history, as in MLPerf's DLRMv4 (docs/sequences.md)."""

from pathlib import Path

from app.config.kinds import ModelKind, ModelParts, PublishedTables
from common.extensions import Core, KeyGroup, ReadyMadeValues, keys_of_extension, later
from data_prep.dataset.kinds import DatasetKind, NamedSource, SourceKind
from extensions.sequences.keys import SequencesConfig, SyntheticEventsConfig, refuse_without_model

EVENT_LOG = DatasetKind(
    "events",
    "give a dataset of events in data.path (docs/sequences.md)",
    later("extensions.sequences.preparation:prepare_events"),
    later("extensions.sequences.events:verify_events"),
    later("extensions.sequences.events:manifest_fault"),
    splits=("events",),
    windows=("train", "val"),
    described_by=frozenset({"user", "item"}),
)
GENERATED = SourceKind(
    EVENT_LOG,
    later("extensions.sequences.synthetic:find_log"),
    group="synthetic_events",
    figures=later("extensions.sequences.synthetic:figures"),
)
YAMBDA = SourceKind(EVENT_LOG, later("extensions.sequences.preparation:fetch_log"), group="remote")
# MLPerf 6.1: Yambda 5b with extensions/sequences/conf_data/events/yambda.yaml.
YAMBDA_5B = {
    "user": 1000001, "user_x_artist": 100000000, "user_x_album": 40000000, "user_x_hour": 24000000,
    "item_x_hour": 40000000, "artist_x_hour": 32000000, "user_x_is_organic": 2000000,
    "user_x_artist_x_hour": 40000000, "item": 9390624, "artist": 1293395, "album": 3367692,
}  # fmt: skip


def register(core: Core) -> None:
    """Add the model, its keys and its ready-made values."""
    core.add(
        EVENT_LOG,
        NamedSource("synthetic_events", GENERATED),
        *(NamedSource(name, YAMBDA) for name in ("yambda_50m", "yambda_500m", "yambda_5b")),
        ReadyMadeValues("app", Path(__file__).parent / "conf"),
        ReadyMadeValues("data_prep", Path(__file__).parent / "conf_data"),
        KeyGroup("DataConfig", "synthetic_events", SyntheticEventsConfig),
        PublishedTables("mlperf_v4", YAMBDA_5B, 0, EVENT_LOG, later("extensions.sequences.events:schema_of_yambda")),
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
    )


def model_parts() -> ModelParts:
    """Import the model's modules, which need torch, and return their functions."""
    from extensions.sequences import event_log, hstu, keys

    return ModelParts(
        tables=hstu.tables_of_events,
        model=hstu.build_hstu,
        open_splits=event_log.open_log,
        bag_sizes=hstu.bag_sizes,
        tasks=lambda config: keys_of_extension(config, keys.SequencesConfig).tasks,
        loss_factor=hstu.loss_factor,
        require_device=keys.require_device,
        require_labels=event_log.refuse_one_class,
        group_metrics=event_log.user_metrics,
        rank=event_log.score_items,
    )
