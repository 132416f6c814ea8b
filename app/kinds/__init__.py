"""Kinds by name, a row each: models, optimizers, schedules, metrics, tasks; types of libraries are text."""
