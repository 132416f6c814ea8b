"""Counts of the code's size and paths: `python -m tests.counts [DIRECTORY]`, of another checkout, too."""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ("app", "data_prep", "common")
LOOP = "app/training/loop.py"
KEY = "frequency_threshold"  # a key of data, followed to its use
ENCODING = "data_prep/encoding/", "data_prep/vocabulary/", "data_prep/stages/"  # where it is used
REFERENCE = re.compile(r"[a-z_]+(\.\w+)+:\w+(\.\w+)?")
VALUES = {"dataclass": "dataclasses", "NamedTuple": "NamedTuples", "Struct": "Structs"}


def modules(root: Path, *packages: str) -> dict[str, Path]:
    """The modules of packages by their dotted names."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    names = (".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return dict(zip(names, paths, strict=True))


def imported(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    """The known modules that a module imports when it is imported, with the packages that they are in."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (prefix for end in range(1, len(parts) + 1) if (prefix := ".".join(parts[:end])) in known)


def closure(start: str, known: dict[str, Path]) -> set[str]:
    """The modules that are imported with one."""
    reached, waiting = {start}, [start]
    while waiting:
        for name in imported(ast.parse(known[waiting.pop()].read_text()), known):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached


def lines(paths: Iterator[Path] | list[Path]) -> int:
    """Lines of files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def counts(root: Path) -> dict[str, str]:
    """What is counted, by its name."""
    core, extensions = modules(root, *CORE), modules(root, "extensions")
    known = core | extensions
    trees = {name: ast.parse(path.read_text()) for name, path in known.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    loop = closure(LOOP.removesuffix(".py").replace("/", "."), known)
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = sorted((node.end_lineno or node.lineno) - node.body[0].lineno + 1 for node in functions)
    private = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )
    once = [each for each in functions if each.name.startswith("_") and private[each.name] == 1]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    comments, code = comment_lines(list(known.values()))
    of_set_up = [each for name in loop for each in functions_of(trees[name]) if takes_config(each)]
    configured = [path for path in core.values() if KEY in path.read_text()]
    before_use = [path for path in configured if not str(path.relative_to(root)).startswith(ENCODING)]
    return {
        "lines of the core": f"{lines(list(core.values())):,} in {len(core)} files",
        "lines of extensions": f"{lines(list(extensions.values())):,} in {len(extensions)} files",
        "lines of tests": f"{lines(list((root / 'tests').rglob('*.py'))):,}",
        f"imported with {LOOP}": f"{len(loop)} files, {lines([known[name] for name in loop]):,} lines",
        "functions there that take the whole configuration": str(len(of_set_up)),
        f"files that mention {KEY} before its use": str(len(before_use)),
        'references as text, "module:object"': str(sum(bool(REFERENCE.fullmatch(text)) for text in texts)),
        "classes that hold values": ", ".join(
            f"{sum(is_of_values(node, kind) for node in nodes)} {name}" for kind, name in VALUES.items()
        ),
        "fields that older documents lack (UnsetType)": str(
            sum(isinstance(node, ast.AnnAssign) and "UnsetType" in ast.unparse(node.annotation) for node in nodes)
        ),
        "private functions with one mention": f"{len(once)}, {sum(map(length_of, once)):,} lines",
        "median lines of a function": str(lengths[len(lengths) // 2]),
        "comment lines of their own": f"{100 * comments / code:.1f} % of lines",
    }


def functions_of(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a module, methods too."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, with its head."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def takes_config(function: ast.FunctionDef) -> bool:
    """Whether a parameter is the whole configuration of a run."""
    arguments = (*function.args.args, *function.args.kwonlyargs)
    return any(each.annotation is not None and ast.unparse(each.annotation) == "AppConfig" for each in arguments)


def is_of_values(node: ast.AST, kind: str) -> bool:
    """Whether a class is a dataclass, or has a base of that name."""
    if not isinstance(node, ast.ClassDef):
        return False
    marks = [*map(ast.unparse, node.decorator_list), *map(ast.unparse, node.bases)]
    return any(mark.split("(")[0].split(".")[-1] == kind for mark in marks)


def comment_lines(paths: list[Path]) -> tuple[int, int]:
    """Lines that are a comment alone, and all that are not empty."""
    comments = total = 0
    for path in paths:
        text = path.read_text()
        total += sum(bool(line.strip()) for line in text.splitlines())
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            comments += token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    return comments, total


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT)
    for name, count in counts(parser.parse_args().directory).items():
        print(f"{name:<52} {count}")


if __name__ == "__main__":
    main()
