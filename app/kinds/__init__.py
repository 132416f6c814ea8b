"""Kinds by name, one row each: models, optimizers, schedules, metrics, tasks; library types are named as text."""
