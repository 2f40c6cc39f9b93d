"""Field id allocation: the highest field id of a table, so that no id is assigned twice.

The format takes the next id from the ids of the schema and those that data files list. A dropped column that was
alone in its file leaves no trace, so the next column would get its id, and rows that another writer prepared before
the drop would become values of the wrong column. When the schema loses its highest id, the config therefore records
that id. Other writers carry the entry along and need not understand it.
"""

from collections.abc import Iterable, Mapping

from lance_core.format._pb import table_pb2
from lance_core.format.schema import TableSchema

FIELD_ID_MAX_KEY = "lance_assets.field_id_max"
"""The config key of the highest field id. The key is absent if the schema and the data files already contain that
id."""
_DIGITS_MAX = 10


def highest_field_id(
    schema: TableSchema, fragments: Iterable[table_pb2.DataFragment], config: Mapping[str, str]
) -> int:
    """Return the highest field id ever assigned, or -1 if there never was a field."""
    recorded = config.get(FIELD_ID_MAX_KEY, "")
    highest = max(schema.field_id_max, int(recorded) if recorded.isdecimal() and len(recorded) <= _DIGITS_MAX else -1)
    listed = (
        max(file.fields, default=-1)
        for fragment in fragments
        for file in (*fragment.files, *(overlay.data_file for overlay in fragment.overlays))
    )
    return max(highest, max(listed, default=-1))
