"""Checks of `app.doctor`: packages, devices, system, datasets, runs. No torch is imported: it may be what is broken."""
