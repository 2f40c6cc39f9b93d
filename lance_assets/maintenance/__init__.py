"""Table maintenance: decides when compaction, index maintenance and cleanup are due, and performs them.

    policy (declared) + survey (manifest and listings) -> plan (pure: what is due, and why) -> actions

    policy.py               declaration `Maintenance`; start here
    plan.py                 decision, from a survey and a policy
    sensor.py               sensor and schedule that launch the maintenance asset
    maintenance_step.py     the asset of one table; `fleet/fleet.py` maintains all tables below a prefix in one job
    active_runs.py          runs that write a table and defer its maintenance
    downstream_pins.py      versions that other tables still need
    scrub.py                verification of a share of the files, which needs no plan

The core implements compaction, index maintenance and cleanup.
"""

from lance_assets.maintenance.maintenance_step import maintenance_asset, maintenance_key
from lance_assets.maintenance.policy import Maintenance
from lance_assets.maintenance.scrub import Scrub, scrub_asset, scrub_key, scrub_schedule
from lance_assets.maintenance.sensor import maintenance_schedule, maintenance_sensor

__all__ = [
    "Maintenance",
    "Scrub",
    "maintenance_asset",
    "maintenance_key",
    "maintenance_schedule",
    "maintenance_sensor",
    "scrub_asset",
    "scrub_key",
    "scrub_schedule",
]
