"""Which Spark is wanted and how, as a value: fit to be shown, kept in a configuration, compared. No sessions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lance_core import InvalidInput

COSMETIC_KEYS = ("spark.app.name",)  # on reuse the first one stays, and nobody is harmed
LOG_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
SECRET_PATTERN = re.compile(r"passw|pwd|secret|token|key|credential|sas(?![a-z])|signature", re.IGNORECASE)
NON_SECRET_KEYS = ("spark.sql.mapKeyDedupPolicy",)  # they only look like it
MASKED = "***"


@dataclass(frozen=True, slots=True, repr=False)
class SparkSettings:
    """Which Spark, and how. `conf` holds any Spark setting and comes before every default.

        SparkSettings()                                                    # local[*]
        SparkSettings(master="spark://host:7077", conf={"spark.executor.memory": "8g"})
        SparkSettings(remote="sc://host:15002")                            # Spark Connect

    Without `master` Spark's own places are asked (spark-submit, MASTER, spark-defaults.conf), then it is
    `local[*]`. A local master retries a failed task only if told: `local[4,3]` gives up at the third failure.
    """

    master: str | None = None
    remote: str | None = None
    app_name: str = "lance-assets"
    conf: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    log_level: str = "WARN"

    def __post_init__(self) -> None:
        object.__setattr__(self, "conf", {key: as_text(value) for key, value in self.conf.items()})
        for name, key in (("master", "spark.master"), ("remote", "spark.remote")):
            ours, inside = getattr(self, name), self.settings.get(key)
            if ours == "" or (ours and inside and ours != inside):
                here, there = mask_secret(name, ours), mask_secret(name, inside or "")
                raise InvalidInput(f"Spark's {name} is {here!r}, {key} in conf is {there!r}: give one of them.")
            object.__setattr__(self, name, ours or inside)
        if self.master and self.master.startswith("sc://") and self.remote in (None, self.master):
            object.__setattr__(self, "remote", self.master)
            object.__setattr__(self, "master", None)
        if self.master and self.remote:
            raise InvalidInput(
                "Spark has either a master, which this process drives, or a remote (Spark Connect): give one."
            )
        if self.remote and not self.remote.startswith("sc://"):
            raise InvalidInput("A Spark Connect remote starts with sc://, as in sc://host:15002.")
        if self.log_level not in LOG_LEVELS:
            raise InvalidInput(f"Spark has no log level {self.log_level!r}; it has {', '.join(LOG_LEVELS)}.")

    @property
    def settings(self) -> dict[str, str]:
        """`conf` as text, which is what Spark takes."""
        return {key: as_text(value) for key, value in self.conf.items()}

    @property
    def requested(self) -> dict[str, str]:
        """Every setting the user asked for, less where Spark is and what it is called."""
        return {
            key: value
            for key, value in self.settings.items()
            if key not in ("spark.master", "spark.remote", *COSMETIC_KEYS)
        }

    def __repr__(self) -> str:
        shown = {key: mask_secret(key, value) for key, value in self.settings.items()}
        remote = mask_secret("remote", self.remote) if self.remote else None
        return (
            f"SparkSettings(master={self.master!r}, remote={remote!r}, app_name={self.app_name!r}, "
            f"conf={shown!r}, log_level={self.log_level!r})"
        )


def mask_secret(key: str, value: str) -> str:
    """The value of a setting, fit to be shown: hidden if the key or the value itself speaks of a secret."""
    if key in NON_SECRET_KEYS or value.lower() in ("true", "false"):
        return value
    if SECRET_PATTERN.search(key) or re.search(r"://[^/@\s]+@", value):
        return MASKED
    return MASKED if re.search(rf"({SECRET_PATTERN.pattern})[^\s=]*=", value, re.IGNORECASE) else value


def as_text(value: str | int | float | bool) -> str:
    """Spark spells booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_mebibytes(size: str | None) -> int | None:
    """A size of memory as Spark writes them, where a bare number counts mebibytes; None where it is no size."""
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", (size or "").strip().lower())
    if not found:
        return None
    return int(int(found[1]) * 1024.0 ** " kmgt".index(found[2] or "m") / 1024**2)
