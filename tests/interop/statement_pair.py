"""What a step is: the same thing said to both libraries."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    ours: str
    theirs: str
