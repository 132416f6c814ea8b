"""The limits of the keys `sequences`."""

from extensions.sequences.keys import SequencesConfig
from tests.key_limits import DROPOUT, ONE, POSITIVE, ZERO, Limits, check_limits

LIMITS: dict[str, Limits] = {
    **dict.fromkeys(("window_seconds", "eval_window", "history_length", "scan_events", "max_history"), ONE),
    "min_history": ZERO,
    **dict.fromkeys(("hstu.dim", "hstu.num_layers", "hstu.num_heads", "hstu.attention_dim",
                     "hstu.hidden_dim", "hstu.preprocessor_dim",
                     "hstu.item_dim", "hstu.action_dim", "hstu.num_positions", "hstu.num_time_buckets"), ONE),
    **dict.fromkeys(("hstu.input_dropout", "hstu.linear_dropout"), DROPOUT),
    **dict.fromkeys(("hstu.position_bound", "hstu.loss_weight"), POSITIVE),
    "hstu.max_seq_len": ([1], [2], "at least 2"),
}  # fmt: skip


def test_each_limit_is_where_the_table_says() -> None:
    check_limits(SequencesConfig, LIMITS)
