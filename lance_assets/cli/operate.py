"""`lance-assets tag | promote | untag | rollback | publish`: the commands that change which version readers see.

Each prints what it would change. `tag` does it at once, since it takes nothing away. The others ask in a terminal, and
without one change nothing unless `--yes` is given. The operator job of a table runs the same actions
(`lance_assets/common/version_actions.py`). Start with `OperatorCommand`.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.table_names import TABLE_HELP, OpenedName, open_named
from lance_assets.common.version_actions import (
    VersionAction,
    plan_promotion,
    plan_publication,
    plan_rollback,
    plan_tag,
    plan_tag_deletion,
)
from lance_assets.lineage.render import without_credentials
from lance_core import InvalidInput
from lance_core.shell import Access

_TAG_HELP = "name of the tag"


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """Command that plans an action, shows it, and does it if the caller agrees."""

    HELP: str
    plan: Callable[[OpenedName, argparse.Namespace], VersionAction]
    argument: tuple[str, str] | None = None
    """Name and help of the argument after the table."""
    is_rollback: bool = False
    """True for the command that undoes versions: it takes an intent and the newest version that it may undo."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("table", metavar="URI", help=TABLE_HELP)
        if self.argument is not None:
            parser.add_argument(self.argument[0].lower(), metavar=self.argument[0], help=self.argument[1])
        if self.is_rollback:
            parser.add_argument("--intent", metavar="TEXT", help="commands with the same text commit one version")
            parser.add_argument(
                "--newest",
                metavar="N",
                type=int,
                help="newest version that may be undone, as a preview shows it (default: the newest)",
            )
        parser.add_argument("--yes", action="store_true", help="do it without asking")
        parser.add_argument("--dry-run", action="store_true", help="only show what would change")

    def run(self, arguments: argparse.Namespace, access: Access) -> int:
        opened = open_named(arguments.table, access)
        planned = self.plan(opened, arguments)
        if not arguments.json:
            uri = printing.printable(without_credentials(opened.table.uri))
            printing.print_text([f"{uri}: {printing.printable(planned.summary)}", *_row_lines(planned)])
        is_agreed = not arguments.dry_run and not planned.is_done and _is_agreed(planned, arguments)
        committed = planned.apply(intent=getattr(arguments, "intent", None)) if is_agreed else None
        if arguments.json:
            printing.print_json(
                {
                    "action": arguments.command,
                    "summary": planned.summary,
                    "version": planned.version,
                    "before": planned.before,
                    "rows_before": planned.rows_before,
                    "rows_after": planned.rows_after,
                    "done": is_agreed or planned.is_done,
                    "committed": committed.version if committed else None,
                }
            )
        elif committed is not None:
            again = ", by an earlier command with this intent" if committed.already_committed else ""
            printing.print_text([f"committed as version {committed.version}{again}"])
        elif is_agreed:
            printing.print_text(["done"])
        elif not planned.is_done:
            newest = f" --newest {planned.before}" if self.is_rollback else ""
            printing.print_text([f"nothing was changed; --yes{newest} does it"])
        return EXIT_OK


def _row_lines(planned: VersionAction) -> list[str]:
    if planned.rows_before is None or planned.rows_after is None:
        return []
    change = printing.format_change(planned.rows_after - planned.rows_before) or "the same number"
    return [f"rows  {planned.rows_before:,} -> {planned.rows_after:,} ({change})"]


def _is_agreed(planned: VersionAction, arguments: argparse.Namespace) -> bool:
    if arguments.yes or not planned.is_destructive:
        return True
    if arguments.json or not sys.stdin.isatty():
        return False
    return input("Do it? [y/N] ").strip().lower() in ("y", "yes")


def _tag(opened: OpenedName, arguments: argparse.Namespace) -> VersionAction:
    return plan_tag(opened.table, arguments.tag, opened.table.version)


def _promote(opened: OpenedName, arguments: argparse.Namespace) -> VersionAction:
    return plan_promotion(opened.table, arguments.tag, opened.table.version)


def _untag(opened: OpenedName, arguments: argparse.Namespace) -> VersionAction:
    return plan_tag_deletion(opened.table, arguments.tag)


def _rollback(opened: OpenedName, arguments: argparse.Namespace) -> VersionAction:
    if opened.is_newest:
        raise InvalidInput(
            f"{arguments.table} names the newest version, to which nothing is to be rolled back; name an older one, as "
            "in URI@42 or URI@tag"
        )
    return plan_rollback(opened.table, opened.table.version, newest=arguments.newest)


def _publish(opened: OpenedName, arguments: argparse.Namespace) -> VersionAction:
    return plan_publication(opened.table, arguments.number)


COMMANDS = {
    "tag": OperatorCommand("give a version a tag, which protects it from cleanup", _tag, ("TAG", _TAG_HELP)),
    "promote": OperatorCommand(
        "move a tag, such as the one that readers open, to a version", _promote, ("TAG", _TAG_HELP)
    ),
    "untag": OperatorCommand("delete a tag; its version stays until a cleanup removes it", _untag, ("TAG", _TAG_HELP)),
    "rollback": OperatorCommand("commit a version with the content of an older one", _rollback, is_rollback=True),
    "publish": OperatorCommand(
        "publish a version that an audit refused",
        _publish,
        ("NUMBER", "number of the refused version, as its error shows it"),
    ),
}
