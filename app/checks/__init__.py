"""Checks of `app.doctor`: packages, devices, system, datasets and runs. None imports torch, which may be broken."""
