"""A run trained again and compared with its record, bit for bit."""
