"""Raw clicks to binary shards. NumPy world: no torch, nothing of `app`."""
