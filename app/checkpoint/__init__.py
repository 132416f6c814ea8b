"""Checkpoints on disk: written whole or not at all, verified and loaded without running foreign code."""
