"""Kinds by name, a row each: optimizers, schedules, metrics, tasks, trackers. Libraries are text, loaded where used."""
