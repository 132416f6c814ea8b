"""Counts of the code beside its budgets: `python -m tests.counts [DIRECTORY]`, of another checkout, too."""

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGETS = {"common": 1_800, "data_prep": 11_500, "app": 15_500, "clickwork": 750, "extensions": 8_500, "tests": 26_000}
PRODUCT = [name for name in BUDGETS if name != "tests"]
LOOP = "app.training.loop"


def modules(root: Path) -> dict[str, Path]:
    """The modules of the product by their dotted names."""
    paths = [path for package in PRODUCT for path in sorted((root / package).rglob("*.py"))]
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


def comment_share(paths: list[Path]) -> float:
    """The share of lines that are a comment alone among all that are not empty."""
    comments = total = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        total += sum(bool(line.strip()) for line in text.splitlines())
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            comments += token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    return comments / total


def counts(root: Path) -> dict[str, str]:
    """What is counted, by its name."""
    known = modules(root)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    imports = {name: set(imported(tree, known)) - {name} for name, tree in trees.items()}
    with_loop = [LOOP]
    for name in with_loop:
        with_loop += imports[name] - {*with_loop}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = sorted((node.end_lineno or node.lineno) - node.body[0].lineno + 1 for node in functions)
    by_package = {
        name: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / name).rglob("*.py"))
        for name in BUDGETS
    }
    product = sum(by_package[name] for name in PRODUCT)
    return {
        **{f"lines of {name}": f"{count:,} (budget {BUDGETS[name]:,})" for name, count in by_package.items()},
        "lines of the product": f"{product:,} (budget 38,000)",
        "modules of the product": f"{len(known)} (budget 170)",
        "median lines of a function": str(lengths[len(lengths) // 2]),
        f"modules imported with {LOOP}": str(len(with_loop)),
        "lines that are a comment": f"{comment_share(list(known.values())):.1%}",
    }


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT)
    for name, count in counts(parser.parse_args().directory).items():
        print(f"{name:<45} {count}")


if __name__ == "__main__":
    main()
