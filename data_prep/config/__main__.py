"""Print the table of every key in docs/data.md, made from data_prep/config/keys.py.

python -m data_prep.config
"""

from omegaconf import OmegaConf

from common.help import key_table
from data_prep.config.keys import PrepConfig


def table() -> str:
    """The table in Markdown."""
    values = OmegaConf.to_container(OmegaConf.structured(PrepConfig), enum_to_str=True)
    return "\n".join(key_table(PrepConfig, values))  # type: ignore[arg-type]


if __name__ == "__main__":
    print(table())
