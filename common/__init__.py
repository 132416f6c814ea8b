"""Code that app and data_prep share: command line, errors, terminal, memory, compiled kernels."""
