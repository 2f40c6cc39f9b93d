"""The commands of `lance-assets`, and how they end.

A command is a module with `HELP`, `configure(parser)` and `run(arguments, access)`. What all of them take (`--json`,
how a store is reached) is added here, and every error becomes a line on stderr here.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from lance_assets.cli import EXIT_FAILED, diff, doctor, history, lineage, run, show
from lance_core import LanceError
from lance_core.shell import access, add_access, plain

_COMMANDS: dict[str, ModuleType] = {
    "history": history,
    "show": show,
    "diff": diff,
    "lineage": lineage,
    "run": run,
    "doctor": doctor,
}
_DESCRIPTION = "Lance tables: their versions, what is in them, and where it comes from. Nothing is written."
_EPILOG = """A version is named URI@42, URI@tag or URI@branch:3; without, it is the newest. Ends with 0, with 1 where
doctor (or diff --exit-code) found something, with 2 where it could not look. Secrets are taken from the environment, by
name: --storage-option-from aws_secret_access_key=MY_KEY."""
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parsed = _parser().parse_args(arguments)
    try:
        ended: int = _COMMANDS[parsed.command].run(parsed, access(parsed, os.environ))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (LanceError, OSError) as error:
        print(f"could not look: {plain(str(error))}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return ended


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lance-assets", description=_DESCRIPTION, epilog=_EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        text = module.HELP
        each = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_EPILOG)
        module.configure(each)
        each.add_argument("--json", action="store_true", help="for programs")
        add_access(each)
    return parser
