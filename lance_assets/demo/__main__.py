"""Demo command line: runs the demo. An expected failure, such as a missing package, prints one sentence and exits with
1."""

import argparse
import sys
from importlib.util import find_spec

from lance_core import LanceError, MissingDependency

_NEEDS = ("dagster", "dagster_webserver", "pandas", "pyspark")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lance_assets.demo",
        description="Load a Lance table with Spark in Dagster, and print its history.",
        epilog="All files are in .demo, or in the folder that LANCE_ASSETS_DEMO names.",
    )
    command_help = "run: run the demo (default); ui: open it in Dagster's web UI"
    parser.add_argument("command", nargs="?", choices=["run", "ui"], default="run", help=command_help)
    try:
        return run(parser.parse_args().command)
    except LanceError as error:
        print(f"\nThe demo stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run it again to continue.", file=sys.stderr)
        return 130


def run(command: str) -> int:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f'{", ".join(missing)} is not installed; run: pip install "lance-assets[dagster,jdk,spark]"'
        )
    # These modules import the packages that were checked above.
    from lance_assets.demo.ui import serve
    from lance_assets.demo.walkthrough import run_walkthrough
    from lance_assets.demo.workspace import demo_workspace

    if command == "ui":
        return serve(demo_workspace(), show)
    run_walkthrough(demo_workspace(), show)
    return 0


def show(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
