"""Print the table of every key in docs/data.md, made from data_prep/config/keys.py.

python -m data_prep.config
"""

from common.compose import plain_values
from common.help import key_table
from data_prep.config.keys import PrepConfig


def table() -> str:
    """The table in Markdown."""
    return "\n".join(key_table(PrepConfig, plain_values(PrepConfig)))


if __name__ == "__main__":
    print(table())
