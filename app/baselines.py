"""python -m app.baselines: the command of extensions/baselines, by the name that it has always had."""

if __name__ == "__main__":
    from common.cli import run_of_extension

    run_of_extension("app.baselines")
