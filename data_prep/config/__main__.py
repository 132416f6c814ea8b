"""Print the table of every key in docs/data.md, made from data_prep/config/keys.py.

python -m data_prep.config
"""

from common.compose import plain_values
from common.extensions import KeyGroup, rows_of_extensions
from common.keys import key_table
from data_prep.config.keys import PrepConfig
from data_prep.dataset.kinds import NamedSource


def table() -> str:
    """Return the table in Markdown, without keys and sources of extensions, which have their own pages."""
    of_extensions = [group.name for group in rows_of_extensions(KeyGroup)]
    of_extensions += [source.name for source in rows_of_extensions(NamedSource)]
    return "\n".join(key_table(PrepConfig, plain_values(PrepConfig), of_extensions))


if __name__ == "__main__":
    print(table())
