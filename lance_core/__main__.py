"""Command line of the package: `python -m lance_core --help`. Each command is implemented in its own package; this
module only registers them.
"""

import argparse
import sys
from collections.abc import Sequence

from lance_core.fsck import command as fsck


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lance_core", description="Commands for Lance tables.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fsck.configure(commands.add_parser("fsck", help=fsck.HELP, description=fsck.DESCRIPTION))
    return fsck.run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
