"""Command line `lance-assets`: registers the commands, and turns errors into a message and an exit code.

A command is a module with `HELP`, `configure(parser)` and `run(arguments, access)`. The options that commands share
(`--json`, access to a store) come from this module.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

from lance_assets.cli import (
    EXIT_FAILED,
    diff,
    doctor,
    failed,
    history,
    lineage,
    operate,
    pack_executors,
    run,
    search,
    show,
)
from lance_core import LanceError
from lance_core.shell import Access, access, add_access, plain


class Command(Protocol):
    """Command that opens a table: a module, or a command that changes versions."""

    @property
    def HELP(self) -> str: ...
    def configure(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, arguments: argparse.Namespace, access: Access) -> int: ...


_COMMANDS: dict[str, Command | ModuleType] = {
    "history": history,
    "show": show,
    "diff": diff,
    "search": search,
    "lineage": lineage,
    "run": run,
    "failed": failed,
    "doctor": doctor,
    **operate.COMMANDS,
}
_TOOLS: dict[str, ModuleType] = {"pack-executors": pack_executors}
"""Commands that open no table: their `run` takes the arguments alone."""
_DESCRIPTION = """Inspect Lance tables: versions, contents and lineage. The commands tag, promote, untag, rollback and
publish change which version readers see; the others write nothing."""
_EPILOG = """A version is named URI@42, URI@tag or URI@branch:3; URI alone is the newest version. The exit code is 0; 1
if doctor reports a problem or diff --exit-code a difference; 2 after an error. Pass secrets by the name of an
environment variable: --storage-option-from aws_secret_access_key=MY_KEY."""
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parsed = _parser().parse_args(arguments)
    try:
        exit_code = _run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (LanceError, OSError) as error:
        print(f"error: {plain(str(error))}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return exit_code


def _run(parsed: argparse.Namespace) -> int:
    if tool := _TOOLS.get(parsed.command):
        return int(tool.run(parsed))
    return int(_COMMANDS[parsed.command].run(parsed, access(parsed, os.environ)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lance-assets", description=_DESCRIPTION, epilog=_EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in {**_COMMANDS, **_TOOLS}.items():
        text = module.HELP
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_EPILOG)
        module.configure(command)
        command.add_argument("--json", action="store_true", help="print JSON")
        if name in _COMMANDS:
            add_access(command)
    return parser
