"""Tables over processes: the plan, how it is made, what it costs, its execution."""
