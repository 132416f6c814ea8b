"""The on-disk form of a dataset: arrays, manifest, schema, bags. `app` imports nothing else of `data_prep`."""
