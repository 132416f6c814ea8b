"""Raw bytes: files found, downloaded and unpacked; inflated and cut into blocks of lines."""
