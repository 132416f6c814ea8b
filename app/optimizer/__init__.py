"""Optimizers: fused into FBGEMM's backward for tables, the same mathematics for dense parameters; schedules."""
