"""python -m app.plan: the command of extensions/plan, by the name that it has always had."""

if __name__ == "__main__":
    from common.cli import run_of_extension

    run_of_extension("app.plan")
