"""Keys of a table's config that the library sets itself, and nobody by hand.

What a table is called by the others, and what they are for, is told where they are used.
"""

from lance_core.format.field_ids import FIELD_ID_MAX_KEY

TABLE_ID = "lance_assets.table_id"
"""Its value is the uuid of the transaction that created the table, which is also the answer for a table of another
library, as long as its first version exists. A branch is its table; a clone is another one."""

RESERVED_KEYS = {
    TABLE_ID: "says which table this is; creating the table sets it, and nobody by hand",
    FIELD_ID_MAX_KEY: "says which field ids were given out; dropping a column sets it, and nobody by hand",
}
