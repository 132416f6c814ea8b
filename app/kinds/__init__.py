"""Kinds by name, a row each: models, optimizers, schedules, metrics, tasks, trackers; types of libraries are text."""
