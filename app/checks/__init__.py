"""Checks of `app.doctor`: packages, devices, system, datasets and runs. They import no torch: it may be what is broken."""
