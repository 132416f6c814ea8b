"""Kinds by name, a row each: optimizers, schedules, metrics. Libraries stand as text and are loaded where used."""
