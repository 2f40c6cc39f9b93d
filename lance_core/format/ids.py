"""Distinct types for the numbers that are easy to mix up: versions, fragments, row ids and row addresses."""

from typing import NewType

Version = NewType("Version", int)
FragmentId = NewType("FragmentId", int)
RowId = NewType("RowId", int)
RowAddress = NewType("RowAddress", int)
"""`fragment_id << 32 | physical offset`; the offset counts deleted rows too."""
