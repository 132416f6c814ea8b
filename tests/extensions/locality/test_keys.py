"""The limits of the keys of traces, and their table in the page."""

from pathlib import Path

from common.compose import plain_values
from common.help import key_table
from extensions.locality.keys import CompareConfig, GenerateConfig, ProfileConfig, TraceConfig
from tests.key_limits import DIFFICULTY, INSIDE, ONE, ZERO, check_limits


def test_every_key_has_its_limits_and_a_meaning() -> None:
    check_limits(ProfileConfig, {})
    check_limits(CompareConfig, {})
    check_limits(GenerateConfig, {"locality.accesses": ONE, "locality.seed": ZERO})
    limits = {"rows": ONE, "eval_rows": ZERO, "seed": ZERO, "click_rate": INSIDE, "difficulty": DIFFICULTY}
    check_limits(TraceConfig, limits)


def test_the_page_has_the_table_of_every_key_of_the_source() -> None:
    page = (Path(__file__).parents[3] / "docs/locality.md").read_text()
    rows = "\n".join(key_table(TraceConfig, plain_values(TraceConfig))).replace("\n| `", "\n| `data.trace.")
    assert rows in page, f"docs/locality.md must have this table:\n{rows}"
