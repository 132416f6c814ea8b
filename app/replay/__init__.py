"""Replays: a run is trained again and compared with its record, bit for bit."""
