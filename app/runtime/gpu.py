"""python -m app.runtime.gpu PLATFORM: end with status 2 and one line unless there is a GPU for it.

Containers run it before they prepare data (docker-compose.yml).
"""

import sys
from typing import cast

from app.config.train import Platform
from app.runtime.platform import available_platform
from common.cli import exit_status


def main() -> None:
    """Look for a GPU of the platform that the first argument names: cuda or rocm."""
    available_platform(cast(Platform, sys.argv[1]))


if __name__ == "__main__":
    sys.exit(exit_status(main))
