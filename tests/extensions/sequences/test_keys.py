"""The limits of the keys `sequences`."""

from extensions.sequences.keys import SequencesConfig, SyntheticEventsConfig
from tests.key_limits import BELOW_1, DROPOUT, ONE, POSITIVE, ZERO, Limits, check_limits

SIZES = ["dim", "num_layers", "num_heads", "attention_dim", "hidden_dim", "preprocessor_dim", "item_dim", "action_dim"]
SIZES += ["num_positions", "num_time_buckets"]
LIMITS: dict[str, Limits] = {
    **dict.fromkeys(("window_seconds", "eval_window", "history_length", "scan_events", "max_history"), ONE),
    "min_history": ZERO,
    **{f"hstu.{name}": ONE for name in SIZES},
    **dict.fromkeys(("hstu.input_dropout", "hstu.linear_dropout"), DROPOUT),
    **dict.fromkeys(("hstu.position_bound", "hstu.loss_weight"), POSITIVE),
    "hstu.max_seq_len": ([1], [2], "at least 2"),
}
LIMITS_OF_GENERATOR: dict[str, Limits] = {
    "users": ONE,
    "seed": ZERO,
    "stay": BELOW_1,
    "days": ([1, 40_001], [2, 40_000], "in [2, 40000]"),
    "events_per_day": ([0.0, 10_000.1], [0.1, 10_000.0], "in (0, 10000]"),
    "items": ([99], [100], "at least 100"),
}


def test_each_limit_is_where_the_table_says() -> None:
    check_limits(SequencesConfig, LIMITS)
    check_limits(SyntheticEventsConfig, LIMITS_OF_GENERATOR)
