"""Profiles of versions: an asset with the partitions of the ledger, that computes figures of an immutable version.

    profile_step.py        the asset: which versions it is asked for, and what is wrong with keys that name none
    profile.py      what is computed: the manifest's figures, and those of columns
    column_profile.py      nulls and lengths of vectors, from rows, within a bound
    profile_metadata.py        the same as Dagster's metadata

A profile reads. It never writes to the table, and never to its ledger.
"""

from lance_assets.profiles.profile import Profile
from lance_assets.profiles.profile_step import profile_asset, profile_key

__all__ = ["Profile", "profile_asset", "profile_key"]
