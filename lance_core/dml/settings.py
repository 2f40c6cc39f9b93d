"""Settings: plans changes of config, table metadata, schema metadata and field metadata.

Entries are set, or deleted if their value is None; with `replace`, entries that are not given are deleted too. Rows and
files stay.
"""

from collections.abc import Mapping

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.format.field_paths import find_field
from lance_core.format.operations import MapUpdate, UpdateConfig
from lance_core.versions.snapshot import Snapshot

SettingChanges = Mapping[str, str | None]
_LIBRARY_PREFIX = "lance_assets."
"""Prefix of the library's own entries, which a replacement keeps unless it names them."""


def set_config(base: Snapshot, values: SettingChanges, *, replace: bool) -> UpdateConfig:
    update = _update(values, replace=replace)
    validation.check_config_keys(update.entries)
    if update.replace:
        own = {key: value for key, value in base.manifest.config.items() if key.startswith(_LIBRARY_PREFIX)}
        update = MapUpdate({**own, **update.entries}, replace=True)
    return UpdateConfig(config=update)


def set_metadata(values: SettingChanges, *, replace: bool) -> UpdateConfig:
    return UpdateConfig(table_metadata=_update(values, replace=replace))


def set_schema_metadata(values: SettingChanges, *, replace: bool) -> UpdateConfig:
    return UpdateConfig(schema_metadata=_update(values, replace=replace))


def set_field_metadata(base: Snapshot, columns: Mapping[str, SettingChanges], *, replace: bool) -> UpdateConfig:
    validation.check_mapping(columns, "columns")
    if not columns:
        raise InvalidInput("no column is given; pass the metadata of at least one column: {column: {key: value}}")
    schema = base.manifest.schema
    updates = {}
    for path, values in columns.items():
        field = find_field(schema, validation.check_text(path, "a name in columns"))[-1]
        updates[field.id] = _update(values, replace=replace)
    return UpdateConfig(field_metadata=updates)


def _update(values: SettingChanges, *, replace: bool) -> MapUpdate:
    entries = validation.check_setting_changes(values, "entries")
    if not entries and not validation.check_flag(replace, "replace"):
        raise InvalidInput("no entry is given; pass at least one, or replace=True to delete all entries")
    return MapUpdate(entries, validation.check_flag(replace, "replace"))
