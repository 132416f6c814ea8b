"""What a finished dataset is on disk: arrays, manifest, schema, bags. All that `app` needs of `data_prep`."""
