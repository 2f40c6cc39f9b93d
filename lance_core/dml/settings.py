"""What a table says about itself: config, its own metadata, that of its schema and of single fields.

Entries are set, or deleted where the value is None; with `replace` whatever is not given goes. Rows and files stay.
"""

from collections.abc import Mapping

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.format.field_paths import find_field
from lance_core.format.operations import MapUpdate, UpdateConfig
from lance_core.versions.snapshot import Snapshot

SettingChanges = Mapping[str, str | None]
_LIBRARY_PREFIX = "lance_assets."
"""Entries that the library needs itself; they outlast a replacement that does not speak of them."""


def set_config(base: Snapshot, values: SettingChanges, *, replace: bool) -> UpdateConfig:
    update = _update(values, replace=replace)
    validation.check_config_keys(update.entries)
    if update.replace:
        ours = {key: value for key, value in base.manifest.config.items() if key.startswith(_LIBRARY_PREFIX)}
        update = MapUpdate({**ours, **update.entries}, replace=True)
    return UpdateConfig(config=update)


def set_metadata(values: SettingChanges, *, replace: bool) -> UpdateConfig:
    return UpdateConfig(table_metadata=_update(values, replace=replace))


def set_schema_metadata(values: SettingChanges, *, replace: bool) -> UpdateConfig:
    return UpdateConfig(schema_metadata=_update(values, replace=replace))


def set_field_metadata(base: Snapshot, columns: Mapping[str, SettingChanges], *, replace: bool) -> UpdateConfig:
    validation.check_mapping(columns, "columns")
    if not columns:
        raise InvalidInput("no column is given; say which one's metadata to set: {column: {key: value}}")
    schema = base.manifest.schema
    return UpdateConfig(
        field_metadata={
            find_field(schema, validation.check_text(path, "a name in columns"))[-1].id: _update(
                values, replace=replace
            )
            for path, values in columns.items()
        }
    )


def _update(values: SettingChanges, *, replace: bool) -> MapUpdate:
    entries = validation.check_setting_changes(values, "entries")
    if not entries and not validation.check_flag(replace, "replace"):
        raise InvalidInput("no entry is given; with replace=True that would delete all of them")
    return MapUpdate(entries, validation.check_flag(replace, "replace"))
