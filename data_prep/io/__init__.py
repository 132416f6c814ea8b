"""Arrays written with their checksums, direct I/O, read-ahead, and progress."""
