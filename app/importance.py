"""python -m app.importance: the command of extensions/importance."""

if __name__ == "__main__":
    from common.cli import run_of_extension

    run_of_extension("app.importance")
