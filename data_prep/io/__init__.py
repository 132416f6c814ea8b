"""Arrays written with their checksums; buffers, read-ahead, disk space, progress."""
