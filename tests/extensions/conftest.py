"""Fixtures of both halves, for extensions."""

from tests.app.conftest import dataset as dataset
from tests.app.conftest import overrides as overrides
from tests.app.conftest import ragged as ragged
from tests.app.conftest import refused_command as refused_command
from tests.app.conftest import run_app as run_app
from tests.app.conftest import runtime as runtime
from tests.data_prep.conftest import criteo as criteo
from tests.data_prep.conftest import mirror as mirror
