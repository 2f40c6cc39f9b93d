"""Tables that look after themselves: when one is due, and what is done about it.

    policy (declared) + survey (manifest and listings) -> plan (pure: what is due, and why) -> compaction, cleanup

`maintenance_step.py`, `sensor.py` and `schedule` in it do it for one declared table; `fleet/fleet.py` for all tables
below a prefix, in one Spark job and with one report. What a compaction or a cleanup does is the core's; that none of
them fights a run that writes is decided in `active_runs.py`, and which versions others still need in
`downstream_pins.py`.
"""

from lance_assets.maintenance.maintenance_step import maintenance_asset, maintenance_key
from lance_assets.maintenance.policy import Maintenance
from lance_assets.maintenance.sensor import maintenance_schedule, maintenance_sensor

__all__ = ["Maintenance", "maintenance_asset", "maintenance_key", "maintenance_schedule", "maintenance_sensor"]
