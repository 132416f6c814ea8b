"""Train, evaluate and record DLRM on the shards that `data_prep` writes."""
