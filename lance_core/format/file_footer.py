"""File footer: the last bytes of a data file, which locate its parts.

Serves the two modules of this package that read files without the codec. Only the codec decodes columns.
"""

import struct

FOOTER = struct.Struct("<QQQIIHH4s")
"""Start of the column metadata, of its offset table and of the offset table of the global buffers; the number of
buffers and of columns; the file version; the magic bytes."""
SPAN = struct.Struct("<QQ")
"""Position and size."""
MAGIC = b"LANC"
