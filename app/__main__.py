"""The installed command: `clickwork NAME key=value ...` does what `python -m app.NAME key=value ...` does.

For instance `clickwork train run.name=mine`, or `clickwork preprocess data.raw=day_0.gz data.path=data/mine`.
"""

import sys

from app.commands import COMMANDS
from common import signals

EXIT_BAD_INPUT = 2  # that of common.cli, which imports Hydra


def main() -> None:
    """Run the command that the first argument names, and end the process with its exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("\n".join([(__doc__ or "").strip(), "", "NAME (each takes --help):", *command_lines()]))
        return
    if name not in COMMANDS:
        print(f"error: {name}: no such command; one of {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    signals.end_at_once()
    command = COMMANDS[name]
    sys.argv = [str(command.path()), *arguments]  # as `python -m` sets it
    from common.cli import run  # imports Hydra, too

    run(command)


def command_lines() -> list[str]:
    """Return a line for each command."""
    return [f"  {command.name:<15} {command.summary}" for command in COMMANDS.values()]


if __name__ == "__main__":
    main()
