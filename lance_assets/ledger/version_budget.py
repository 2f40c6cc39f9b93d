"""How many versions a ledger retains, and what is said when they grow many. Pure.

Each retained version is a partition of the ledger. Dagster's pages take a hundred thousand, its automation conditions
grow slow with a few thousand. Nothing is taken away here: which versions go is for whoever owns the table to say.
"""

from lance_assets.ledger.ledger import Ledger

SOFT_CAP = 2_000
"""From here on each event says it."""
WARNING_THRESHOLD = 10_000
"""From here on whoever records a version warns."""


def retention_advice(ledger: Ledger, retained: int) -> str | None:
    """For a ledger that retains too many."""
    if retained < SOFT_CAP:
        return None
    far = "" if retained < WARNING_THRESHOLD else "far "
    return (
        f"{ledger.label} retains {retained:,} versions, each a partition, {far}above the {SOFT_CAP:,} that stay quick "
        "in Dagster. Let versions go that nobody needs: lower keep_versions= and keep_for= in the table's "
        "maintenance=Maintenance(...), declare one if it has none, or run Table.cleanup(older_than=..., keep=...). "
        "Versions that a tag names stay; the partitions of those that go are retired by the sensor"
    )


def growth_warning(ledger: Ledger, before: int, after: int) -> str | None:
    """For recorders that brought it from so many to so many: when it passes the soft cap, and always far above."""
    passes = before < SOFT_CAP <= after
    return retention_advice(ledger, after) if passes or (before < after and after >= WARNING_THRESHOLD) else None
