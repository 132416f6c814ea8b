"""Counting, merging and ranking of a column's distinct values in bounded memory."""
