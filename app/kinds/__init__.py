"""Kinds by name, a row each: optimizers, schedules, metrics, trackers. Libraries stand as text, loaded where used."""
