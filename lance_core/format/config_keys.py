"""Reserved config keys: keys of the table config that only the library sets.

The other names of a table and their uses are documented where they are used.
"""

from lance_core.format.field_ids import FIELD_ID_MAX_KEY

TABLE_ID = "lance_assets.table_id"
"""Its value is the uuid of the transaction that created the table. For a table of another library that uuid is taken
from the first version, as long as it exists. A branch has the id of its table; a clone has its own."""

RESERVED_KEYS = {
    TABLE_ID: "identifies the table; the library sets it when it creates the table, and callers cannot set it",
    FIELD_ID_MAX_KEY: "records the highest field id; the library sets it when a column is dropped, and callers "
    "cannot set it",
}
"""Keys that callers cannot set, each with the end of the sentence "the config key ..."."""
