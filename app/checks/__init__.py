"""Checks of `app.doctor`: packages, devices, system, datasets, runs. They do not import torch, which may be broken."""
