"""Fixtures of both halves, for extensions."""

from tests.data_prep.conftest import criteo as criteo
