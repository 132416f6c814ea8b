"""Completion by the tab key in bash, in commands as people type them."""

import subprocess
import time

import pytest

from app import completion
from app.config.app_config import CONFIG_DIR, AppConfig
from common.keys import keys_of, ready_made_groups

SCRIPT = completion.script()
ASK = """
COMP_LINE=$1 COMP_POINT=${#1}
_clickwork
printf '%s\\n' "${COMPREPLY[@]}"
"""


def ask(line: str, breaks: str = "=") -> list[str]:
    """The words that may follow, where readline breaks words at `breaks`."""
    script = f"COMP_WORDBREAKS='{breaks}'\n{SCRIPT}\n{ASK}"
    answer = subprocess.run(["bash", "--norc", "-uc", script, "bash", line], capture_output=True, text=True, check=True)
    assert not answer.stderr
    return answer.stdout.split()


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("clickwork rec", ["recommend"]),
        ("clickwork train train.max_s", ["train.max_samples=", "train.max_steps="]),
        (".venv/bin/clickwork train recipe=amd_b", ["recipe=amd_blog_2024", "recipe=amd_blog_2024_fixed"]),
        ("clickwork preprocess data.enc", ["data.encoding="]),
        ("python -m app.train run.name=x model.inter", ["model.interaction=", "model.interaction_itself="]),
        ("python -m app.train model.interaction=d", ["model.interaction=dot", "model.interaction=dcn"]),
        ("python -m app.train train.drop_last=", ["train.drop_last=true", "train.drop_last=false"]),
        (".venv/bin/python -m app.launch --nproc-per-node 2 -m app.train recipe=deep", ["recipe=deepspark_3day"]),
        ("python -m app.train topology=mi3", [f"topology=mi{n}x" for n in (300, 325, 350, 355)]),
        ("python -m app.evaluate recipe=", []),
        ("python setup.py ins", []),
    ],
)
def test_keys_choices_and_recipes_are_offered(line: str, answers: list[str]) -> None:
    assert sorted(ask(line, breaks="")) == sorted(answers)


def test_a_word_that_readline_breaks_is_answered_by_its_end() -> None:
    assert ask("clickwork train recipe=deep") == ["deepspark_3day"]
    assert ask("clickwork train train.ep") == ["train.epochs="]


def test_every_key_and_recipe_is_there_and_no_python_is_started() -> None:
    begin = time.process_time()
    offered = set(ask("python -m app.train recipe=", breaks=""))
    assert time.process_time() - begin < 2  # no torch
    assert offered == {f"recipe={name}" for name in ready_made_groups(CONFIG_DIR)["recipe"]}
    keys = {f"{key}=" for key, *_ in keys_of(AppConfig)}
    assert keys <= set(ask("python -m app.train ", breaks=""))
