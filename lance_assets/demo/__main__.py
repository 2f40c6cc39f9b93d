"""The demo's command line. What can go wrong on a new machine is said in a sentence, with exit code 1."""

import argparse
import sys
from importlib.util import find_spec

from lance_core import LanceError, MissingDependency

_NEEDS = ("dagster", "dagster_webserver", "pandas", "pyspark")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lance_assets.demo",
        description="Loads a Lance table by Spark in Dagster, and shows its history.",
        epilog="Everything is kept in .demo, or in the folder that LANCE_ASSETS_DEMO names.",
    )
    what = "run: the demo itself (default); ui: look at it in Dagster's web UI"
    parser.add_argument("what", nargs="?", choices=["run", "ui"], default="run", help=what)
    wanted = parser.parse_args().what
    try:
        return run(wanted)
    except LanceError as error:
        print(f"\nThe demo stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run it again to go on where it was.", file=sys.stderr)
        return 130


def run(wanted: str) -> int:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f'{", ".join(missing)} is not installed here; run: pip install "lance-assets[dagster,jdk,spark]"'
        )
    # Known to be installed only now.
    from lance_assets.demo.ui import serve
    from lance_assets.demo.walkthrough import run_walkthrough
    from lance_assets.demo.workspace import demo_workspace

    if wanted == "ui":
        return serve(demo_workspace(), show)
    run_walkthrough(demo_workspace(), show)
    return 0


def show(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
