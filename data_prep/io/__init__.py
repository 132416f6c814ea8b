"""Files written whole, checksummed on the way; buffers, read-ahead, disk space, progress."""
