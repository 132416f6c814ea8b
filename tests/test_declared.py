"""The reference has every command, key and document with the meaning that its declaration has."""

import ast
import re

import pytest

from app.commands import COMMANDS
from common.extensions import load
from common.keys import declaration, keys_of
from tests.declared import PACKAGES, ROOT, commands, documents

DOCUMENTS = {"OpenDocument", "JsonObject", "Provenance", "Event", "Plan", "PlannedTable"}


@pytest.mark.medium
def test_every_command_and_key_is_in_the_reference() -> None:
    lines = "\n".join(commands()).splitlines()
    for command in COMMANDS.values():
        assert f"`clickwork {command.name}`: {command.summary}." in lines
        for key, owner, field, _ in keys_of(load(command.schema)) if command.schema else ():
            meaning = declaration(owner, field).meaning.replace("|", "\\|")
            assert meaning, key
            assert any(line.startswith(f"| `{key}` |") and line.endswith(f" {meaning} |") for line in lines), key


@pytest.mark.medium
def test_every_document_is_in_the_reference() -> None:
    sections = "\n".join(documents()).split("\n##")
    for path in [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and DOCUMENTS & {ast.unparse(base) for base in node.bases}:
                fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
                rows = [f"\n| `{ast.unparse(field)}` | " for field in fields if ast.unparse(field) != "rest"]
                words = {*re.findall(r"\w+", ast.get_docstring(node) or "")} - {"Attributes"}
                found = [each for each in sections if all(row in each for row in rows)]
                assert words, f"{node.name} has no docstring"
                assert any(words <= {*re.findall(r"\w+", each)} for each in found), node.name
