"""Version budget: advice and warnings about a ledger that retains many versions. Pure.

Each retained version is a partition of the ledger. Dagster's pages handle a hundred thousand of them, but its
automation conditions become slow with a few thousand. This module removes nothing: the owner of the table decides
which versions to retain.
"""

from lance_assets.ledger.ledger import Ledger

SOFT_CAP = 2_000
"""Number of versions from which each event contains the advice."""
WARNING_THRESHOLD = 10_000
"""Number of versions from which every recording logs a warning."""


def retention_advice(ledger: Ledger, retained: int) -> str | None:
    """Return the advice for a ledger that retains too many versions; `None` below the soft cap."""
    if retained < SOFT_CAP:
        return None
    far = "" if retained < WARNING_THRESHOLD else "far "
    return (
        f"{ledger.label} retains {retained:,} versions, each of them a partition, {far}above the {SOFT_CAP:,} up to "
        "which Dagster stays fast. Remove versions that are no longer needed: lower keep_versions= and keep_for= in "
        "the table's maintenance=Maintenance(...), declare one if it has none, or run Table.cleanup(older_than=..., "
        "keep=...). Tagged versions stay; the sensor retires the partitions of removed versions"
    )


def growth_warning(ledger: Ledger, before: int, after: int) -> str | None:
    """Return the warning for a recorder that increased the number of versions from `before` to `after`.

    Return `None` unless the number crosses the soft cap or has reached the warning threshold.
    """
    crosses_cap = before < SOFT_CAP <= after
    return retention_advice(ledger, after) if crosses_cap or (before < after and after >= WARNING_THRESHOLD) else None
