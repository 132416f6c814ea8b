"""Counts of the code beside its budgets: `python -m tests.counts [DIRECTORY]`, of another checkout, too."""

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
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


def closure(starts: tuple[str, ...], imports: dict[str, set[str]]) -> set[str]:
    """The modules that are imported with some."""
    reached, waiting = set(starts), [*starts]
    while waiting:
        for name in imports[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return reached


def files_of_row(root: Path) -> str:
    """The number of files whose functions run from a CSV to a batch."""
    program = [sys.executable, str(Path(__file__).with_name("row_files.py"))]
    return subprocess.run(program, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def lines(paths: list[Path]) -> int:
    """Lines of files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


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
    importers = Counter(target for targets in imports.values() for target in targets)
    functions = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = sorted((node.end_lineno or node.lineno) - node.body[0].lineno + 1 for node in functions)
    by_package = {name: lines([*(root / name).rglob("*.py")]) for name in BUDGETS}
    product = sum(by_package[name] for name in PRODUCT)
    return {
        **{f"lines of {name}": f"{count:,} (budget {BUDGETS[name]:,})" for name, count in by_package.items()},
        "lines of the product": f"{product:,} (budget 38,000)",
        "modules of the product": f"{len(known)} (budget 170)",
        "median lines of a function": str(lengths[len(lengths) // 2]),
        "functions of at most two lines": f"{sum(length <= 2 for length in lengths)} of {len(lengths)}",
        "modules with one importer": str(sum(count == 1 for count in importers.values())),
        f"modules imported with {LOOP}": str(len(closure((LOOP,), imports))),
        "files that a row of a CSV passes": f"{files_of_row(root)} (wanted 30)",
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
