"""The installed command: `clickwork NAME key=value ...` does what `python -m app.NAME key=value ...` does.

For instance `clickwork train run.name=mine`, or `clickwork preprocess data.raw=day_0.gz data.path=data/mine`.
"""

import runpy
import sys

MODULES = {
    **{name: f"app.{name}" for name in (
        "train", "evaluate", "recommend", "export", "plan", "bench", "verify", "report", "doctor", "launch",
        "completion")},
    "preprocess": "data_prep",
    "verify-data": "data_prep.verify",
    "interchange": "data_prep.interchange",
}  # fmt: skip
# pyproject.toml says why torchrec is in no extra.
REMEDIES = {
    "torch": 'in its checkout: pip install ".[cpu]"',
    "fbgemm_gpu": 'in its checkout: pip install ".[cpu]"',
    "torchrec": "pip install --no-deps torchrec==1.8.0",
}
EXIT_BAD_INPUT = 2


def main() -> int:
    """Run the command that the first argument names; return an exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(f"{(__doc__ or '').strip()}\n\nNAME: {', '.join(MODULES)}; each takes --help")
        return 0
    if name not in MODULES:
        print(f"error: {name}: no such command; one of {', '.join(MODULES)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    sys.argv = ["-m", *arguments]  # as Python sets it while it imports a module to be run
    try:
        runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if error.name not in REMEDIES:
            raise
        print(f"error: {error.name} is not installed beside clickwork; {REMEDIES[error.name]}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
