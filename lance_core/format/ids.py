"""Identifier types: distinct types for integers that are easy to confuse."""

from typing import NewType

Version = NewType("Version", int)
FragmentId = NewType("FragmentId", int)
RowId = NewType("RowId", int)
RowAddress = NewType("RowAddress", int)
"""`fragment_id << 32 | physical offset`; the offset counts deleted rows too."""
