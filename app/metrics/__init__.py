"""Measurements: click metrics and curves, step times, memory, power, profiles, ceilings."""
