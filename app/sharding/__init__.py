"""Sharding of tables over processes: the plan, how it is made, what it costs, and its execution."""
