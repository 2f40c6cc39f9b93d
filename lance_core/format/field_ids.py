"""Which field ids a table has given out, so that none is given out twice.

The format takes the next one from what is there: the ids of the schema and those that data files list. A dropped column
that was alone in its file leaves no trace, so the next column would get its id, and rows that another writer prepared
before the drop would become values of the wrong column. When the schema loses its highest id, the config therefore
notes it; other writers keep the entry, and need not understand it.
"""

from collections.abc import Iterable, Mapping

from lance_core.format._pb import table_pb2
from lance_core.format.schema import TableSchema

FIELD_ID_MAX_KEY = "lance_assets.field_id_max"
"""Config key; absent where what is there tells as much."""
_DIGITS_MAX = 10


def highest_field_id(schema: TableSchema, fragments: Iterable[table_pb2.DataFragment], config: Mapping[str, str]) -> int:
    """-1 where there was never a field."""
    noted = config.get(FIELD_ID_MAX_KEY, "")
    found = max(schema.field_id_max, int(noted) if noted.isdecimal() and len(noted) <= _DIGITS_MAX else -1)
    listed = (max(file.fields, default=-1) for fragment in fragments for file in fragment.files)
    return max(found, max(listed, default=-1))
