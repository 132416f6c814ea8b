"""The on-disk form of a dataset: arrays, manifest, schema and bags."""
