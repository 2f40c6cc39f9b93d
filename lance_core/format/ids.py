"""Identifier types: distinct types for integers that are easy to confuse."""

from typing import NewType

Version = NewType("Version", int)
FragmentId = NewType("FragmentId", int)
RowId = NewType("RowId", int)

FRAGMENT_ID_MAX = 2**32 - 1
