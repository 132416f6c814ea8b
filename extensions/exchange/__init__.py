"""Datasets converted to and from other programs' files."""
