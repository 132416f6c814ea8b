"""A dataset's splits as batches, in an order that is a pure function of seed, epoch and global batch size."""
