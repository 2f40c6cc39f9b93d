"""Version actions: tag, promote, roll back and publish versions of a table, for the operator job and the command line.

    plan = plan_promotion(table, "live", version=42)     what the action would change; nothing is written
    plan.apply(intent="...")                             do it

A plan is made from the table as it is. `apply` fails if the tag of the action was moved or deleted since, and for a
rollback if a version was committed since, which it would undo unseen. A publication follows the newest version, even if
that was committed after the plan. Start with `VersionAction`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lance_core import AlreadyExists, Committed, IncompatibleConflict, InvalidInput, NotFound, Table


@dataclass(frozen=True, slots=True)
class VersionAction:
    """Planned action."""

    summary: str
    """Sentence that says what the action does."""
    version: int | None
    """Version that the action names: the tagged one, or the one whose content is committed again."""
    before: int | None
    """Version that the tag has now, or the newest version of the branch."""
    _perform: Callable[[str | None, Mapping[str, str] | None], Committed | None]
    is_destructive: bool = True
    """False for an action that takes nothing away from readers."""
    is_done: bool = False
    """True if the table is already as the action would leave it."""
    rows_before: int | None = None
    """Rows of the branch now; `None` if the action commits no version."""
    rows_after: int | None = None
    """Rows of the branch after the action, as far as they are known."""

    def apply(self, *, intent: str | None = None, properties: Mapping[str, str] | None = None) -> Committed | None:
        """Do it, and return the version that it has committed; `None` for an action on a tag."""
        return None if self.is_done else self._perform(intent, properties)


def plan_tag(table: Table, tag: str, version: int | None = None) -> VersionAction:
    """Plan a new tag. Raise `AlreadyExists` if another version has it."""
    number, existing = _resolve(table, version), table.tags.list().get(tag)
    is_done = existing is not None and (existing.branch, existing.version) == (table.branch, number)
    if existing is not None and not is_done:
        raise AlreadyExists(
            f"{table.uri} has a tag {tag!r} already, at version {existing.version}"
            f"{_on_branch(existing.branch)}; promote moves it"
        )

    def create(_intent: str | None, _properties: Mapping[str, str] | None) -> None:
        table.tags.create(tag, number)

    target = f"version {number}{_on_branch(table.branch)}"
    summary = f"{target} has the tag {tag!r} already" if is_done else f"give {target} the tag {tag!r}"
    before = existing.version if existing else None
    return VersionAction(summary, number, before, create, is_destructive=False, is_done=is_done)


def plan_promotion(table: Table, tag: str, version: int | None = None) -> VersionAction:
    """Plan to move a tag, such as the one that readers open, to a version. It is created if it does not exist."""
    number, existing = _resolve(table, version), table.tags.list().get(tag)
    if existing is None:
        return plan_tag(table, tag, number)
    before = f"version {existing.version}{_on_branch(existing.branch)}"
    target = f"version {number}{_on_branch(table.branch)}"
    is_done = (existing.branch, existing.version) == (table.branch, number)

    def move(_intent: str | None, _properties: Mapping[str, str] | None) -> None:
        _check_tag_is_unchanged(table, tag, existing.branch, existing.version)
        table.tags.update(tag, number)

    summary = (
        f"the tag {tag!r} is at {target} already" if is_done else f"move the tag {tag!r} from {before} to {target}"
    )
    return VersionAction(summary, number, existing.version, move, is_done=is_done)


def plan_tag_deletion(table: Table, tag: str) -> VersionAction:
    """Plan to delete a tag. Its version stays until a cleanup removes it."""
    existing = table.tags.list().get(tag)
    if existing is None:
        raise NotFound(f"{table.uri} has no tag {tag!r}")
    summary = f"delete the tag {tag!r} of version {existing.version}{_on_branch(existing.branch)}"

    def delete(_intent: str | None, _properties: Mapping[str, str] | None) -> None:
        _check_tag_is_unchanged(table, tag, existing.branch, existing.version)
        table.tags.delete(tag)

    return VersionAction(summary, None, existing.version, delete)


def plan_rollback(
    table: Table, version: int | None = None, tag: str | None = None, *, newest: int | None = None
) -> VersionAction:
    """Plan to commit a version with the content of an older one of this branch, named by its number or by a tag.

    The plan undoes the versions up to `newest`, the newest one that the caller knows, or by default the newest one now.
    `apply` raises `IncompatibleConflict` if there is a later one."""
    if (version is None) == (tag is None):
        raise InvalidInput("a rollback needs the version= or the tag= to return to, and only one of them")
    if tag is not None:
        existing = table.tags.list().get(tag)
        if existing is None or existing.branch != table.branch:
            raise NotFound(f"{table.uri} has no tag {tag!r} on this branch")
        version = existing.version
    number = _resolve(table, version)
    older, last = table.at(number), table.refresh() if newest is None else table.at(newest)
    if number > last.version:
        raise InvalidInput(f"newest={newest}: version {number}, to which to roll back, is a later one")

    def restore(intent: str | None, properties: Mapping[str, str] | None) -> Committed:
        try:
            return last.restore(number, intent=intent, properties=properties, if_newest=True)
        except IncompatibleConflict as conflict:
            if conflict.rule != "unseen_version":
                raise
            raise _moved_on(table, last.version) from conflict

    return VersionAction(
        f"commit a version with the rows, columns, indices and config of version {number}{_on_branch(table.branch)}; "
        f"{_undone(number, last.version)}",
        number,
        last.version,
        restore,
        rows_before=last.count_rows(),
        rows_after=older.count_rows(),
    )


def plan_publication(table: Table, detached_version: str) -> VersionAction:
    """Plan to publish a version that an audit refused, by its number, which is longer than those of a branch."""
    text = detached_version.strip()
    if not text.isdecimal():
        raise InvalidInput(f"detached_version={detached_version!r} is not the number of a version")
    newest = table.refresh()
    try:
        rows_after = table.at(int(text)).count_rows()
    except NotFound:  # published before, and removed since: the publication finds its version
        rows_after = None
    summary = f"publish the refused version {text} after version {newest.version}{_on_branch(table.branch)}"
    return VersionAction(
        summary,
        int(text),
        newest.version,
        lambda _intent, _properties: newest.publish(int(text)),
        rows_before=newest.count_rows(),
        rows_after=rows_after,
    )


def _resolve(table: Table, version: int | None) -> int:
    """Return the version; the newest one of the branch if it is `None`. Raise `NotFound` if it does not exist."""
    return int(table.refresh().version if version is None else table.at(version).version)


def _undone(version: int, newest: int) -> str:
    """Return the part of a summary that names the versions after the one that a rollback returns to."""
    if version == newest:
        return "it is the newest version, so nothing is undone"
    if version + 1 == newest:
        return f"version {newest} is undone, and stays in the history"
    return f"versions {version + 1} to {newest} are undone, and stay in the history"


def _moved_on(table: Table, planned: int) -> IncompatibleConflict:
    """Return the error of a rollback that would undo versions that its plan does not name."""
    later = [number for number in table.version_numbers() if number > planned]
    unseen = (
        f"version {later[0]}" if len(later) == 1 else f"versions {planned + 1} to {max(later, default=planned + 1)}"
    )
    return IncompatibleConflict(
        f"{table.uri}: nothing was rolled back, since {unseen}{_on_branch(table.branch)}, which the rollback would "
        f"undo, came after version {planned}, the newest one that it names; look at what changed, and plan the "
        "rollback again",
        ours="rollback",
        theirs="version",
        version=max(later, default=planned + 1),
        rule="unseen_version",
    )


def _check_tag_is_unchanged(table: Table, name: str, branch: str | None, version: int) -> None:
    """Raise `IncompatibleConflict` unless a tag is still at this version."""
    found = table.tags.list().get(name)
    if found is None or (found.branch, found.version) != (branch, version):
        now = "was deleted" if found is None else f"was moved to version {found.version}{_on_branch(found.branch)}"
        raise IncompatibleConflict(
            f"{table.uri}: the tag {name!r} {now} after this action was planned; look at the table, and repeat the "
            "action if it is still right",
            ours="tag",
            theirs="tag",
            version=version if found is None else found.version,
            rule="tag_moved",
        )


def _on_branch(branch: str | None) -> str:
    return "" if branch is None else f" of the branch {branch!r}"
