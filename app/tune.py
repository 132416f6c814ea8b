"""python -m app.tune: the command of extensions/tune."""

if __name__ == "__main__":
    from common.cli import run_of_extension

    run_of_extension("app.tune")
