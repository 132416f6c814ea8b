"""Shared by app and data_prep: command line, errors, terminal, memory, compiled kernels."""
