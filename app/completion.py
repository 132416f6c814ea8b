"""Completion for bash of the commands, their keys, choices and recipes: `eval "$(clickwork completion)"`.

It completes `clickwork train …` and `python -m app.train …` from words that are part of the script, so that a press of
the tab key starts no Python.
"""

from collections.abc import Iterator

from app.__main__ import MODULES
from app.config import CONFIG_DIR, AppConfig, EvaluateConfig, PlanAppConfig, ReportConfig, VerifyConfig
from app.config.commands import BenchConfig, DoctorConfig, ExportConfig, RecommendConfig
from common.help import groups_of
from common.keys import choices, keys_of
from data_prep.config.compose import CONFIG_DIRECTORY
from data_prep.config.keys import PrepConfig

SCHEMAS: dict[str, type] = {
    "app.train": AppConfig,
    "app.evaluate": EvaluateConfig,
    "app.recommend": RecommendConfig,
    "app.export": ExportConfig,
    "app.plan": PlanAppConfig,
    "app.bench": BenchConfig,
    "app.verify": VerifyConfig,
    "app.report": ReportConfig,
    "app.doctor": DoctorConfig,
    "data_prep": PrepConfig,
    "data_prep.verify": PrepConfig,
    "data_prep.interchange": PrepConfig,
}
# COMP_WORDBREAKS may split words at "=": the word is taken from the line, and its beginning off the answers again.
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


def words_of(schema: type) -> Iterator[str]:
    """Each key as `key=`, or as `key=choice` for each of its choices; each group's names as `group=name`."""
    groups = groups_of(CONFIG_DIRECTORY if schema is PrepConfig else CONFIG_DIR)
    for key, _, _, kind in keys_of(schema):
        yield from (f"{key}={choice}" for choice in (["true", "false"] if kind is bool else choices(kind) or [""]))
    if issubclass(schema, (AppConfig, PrepConfig)):
        yield from (f"{group}={name}" for group, names in groups.items() for name in names)


def script() -> str:
    """The script for bash."""
    cases = [f"    clickwork) words='{' '.join(MODULES)}' ;;"]
    for module, schema in SCHEMAS.items():
        names = [module, *(f"clickwork.{name}" for name, its_module in MODULES.items() if its_module == module)]
        cases.append(f"    {'|'.join(names)}) words='{' '.join(words_of(schema))}' ;;")
    return SCRIPT.replace("@CASES@", "\n".join(cases))


if __name__ == "__main__":
    print(script())
