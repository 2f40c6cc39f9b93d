"""Profiles: column statistics of a version, in an asset that has the partitions of the ledger.

    profile_step.py        the asset: evaluates the requested partitions; start here
    profile.py             declaration, and the statistics of one version
    column_profile.py      null counts and vector lengths, from rows, within a size bound
    partition_lookup.py    opens the version that a partition key names
    profile_metadata.py    a profile as Dagster metadata

A profile only reads. It never writes to the table or to its ledger.
"""

from lance_assets.profiles.profile import Profile
from lance_assets.profiles.profile_step import profile_asset, profile_key

__all__ = ["Profile", "profile_asset", "profile_key"]
