"""A dataset's splits as batches."""

from app.data.shards import find_split, verify_splits
from app.data.split import BatchMaker, Order, Split

__all__ = ["BatchMaker", "Order", "Split", "find_split", "verify_splits"]
