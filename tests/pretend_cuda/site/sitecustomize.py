"""Puts the pretended device under any Python process whose PYTHONPATH names this folder and the repository."""

from tests.pretend_cuda import device

device.install_on_import()
