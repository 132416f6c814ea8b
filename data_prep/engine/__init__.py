"""A job's tasks on processes or a cluster: task log, memory budget, workspace."""
