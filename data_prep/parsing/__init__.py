"""Bytes to typed columns: Criteo's rows, and users' own CSV and Parquet tables."""
