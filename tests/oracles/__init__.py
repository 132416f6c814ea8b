"""Naive programs that results are compared with."""
