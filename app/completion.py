"""Completion for bash of the commands, their keys, choices and recipes: `eval "$(clickwork completion)"`.

It completes `clickwork train …` and `python -m app.train …` from words that are part of the script, so that a press of
the tab key starts no Python.
"""

if __name__ == "__main__":  # before the imports below, which may take seconds
    from app.commands import COMMANDS
    from common.cli import run

    run(COMMANDS["completion"])


from collections.abc import Iterator

from app.commands import COMMANDS
from common.cli import EXIT_DONE
from common.command import Command, load
from common.keys import choices, keys_of, ready_made_groups

# COMP_WORDBREAKS may split words at "=". So the script takes the word from the line, and cuts its beginning off
# answers.
SCRIPT = r"""_clickwork() {
  local line=${COMP_LINE:0:COMP_POINT} module= words= word
  word=${line##*[[:space:]]}
  if [[ $line =~ .*[[:space:]]-m[[:space:]]+([a-z_.]+)[[:space:]] ]]; then module=${BASH_REMATCH[1]}
  elif [[ $line =~ (^|/)clickwork[[:space:]]+([a-z-]+)[[:space:]] ]]; then module=clickwork.${BASH_REMATCH[2]}
  elif [[ $line =~ (^|/)clickwork[[:space:]] ]]; then module=clickwork; fi
  case $module in
@CASES@
    *) return ;;
  esac
  [[ $word == *=* ]] || words=$(printf '%s\n' $words | sed 's/=.*/=/' | sort -u)
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}")
  [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o default -F _clickwork clickwork python python3"""


def words_of(command: Command) -> Iterator[str]:
    """Yield each key as `key=`, or as `key=choice` per choice, and each group's names as `group=name`."""
    if command.schema is None:
        return
    for key, _, _, kind in keys_of(load(command.schema)):
        yield from (f"{key}={choice}" for choice in (["true", "false"] if kind is bool else choices(kind) or [""]))
    yield "config="
    if command.has_groups:
        yield from (
            f"{group}={name}" for group, names in ready_made_groups(command.config_dir).items() for name in names
        )


def script() -> str:
    """Return the script for bash."""
    cases = [f"    clickwork) words='{' '.join(COMMANDS)}' ;;"]
    for name, row in COMMANDS.items():
        cases += [f"    {row.module}|clickwork.{name}) words='{' '.join(words_of(row))}' ;;"]
    return SCRIPT.replace("@CASES@", "\n".join(cases))


def main(arguments: list[str]) -> int:
    """Print the script, or with --help what it is for."""
    print(__doc__ if {"-h", "--help"} & {*arguments} else script())
    return EXIT_DONE
