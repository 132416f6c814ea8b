"""python -m data_prep.inspect: the command of extensions/inspect."""

if __name__ == "__main__":
    from common.cli import run_of_extension

    run_of_extension("data_prep.inspect")
