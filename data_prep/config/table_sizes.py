"""How many rows the embedding tables of a dataset need."""

import numpy as np

from data_prep.config.presets import Rules


def largest_id(rules: Rules, num_values: int | None) -> int:
    """The largest id a feature can have before ids are rounded or wrapped as TorchRec does.

    Args:
        num_values: of its vocabulary; None without one.
    """
    if num_values is None:
        assert rules.max_ind_range is not None
        return rules.max_ind_range - 1
    return max(rules.first_id + num_values - 1, rules.unknown_id)


def num_embeddings(rules: Rules, num_values: int | None) -> int:
    """Rows of a feature's table: one more than the largest id there can be; arguments as of `largest_id`."""
    largest = largest_id(rules, num_values)
    if rules.rounds_ids:
        largest = max(largest, int(np.float32(largest)))
    rows = largest + 1
    return min(rows, rules.max_ind_range) if rules.wraps and rules.max_ind_range else rows
