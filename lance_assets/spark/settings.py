"""Spark settings: describes a Spark application as a value that can be compared, stored and displayed.

Secrets are masked in its text form. This module never opens a session. Start with `SparkSettings`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lance_assets.spark.redaction import is_hidden_variable
from lance_core import InvalidInput
from lance_core.tasks.credentials import SECRET_WORDS, contains_secret

COSMETIC_KEYS = ("spark.app.name",)  # on reuse of an application the first name stays, which is harmless
LOG_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
_SECRET_NAME = re.compile(SECRET_WORDS, re.IGNORECASE)
_SECRET_IN_VALUE = re.compile(rf"({SECRET_WORDS})[^\s=]*=", re.IGNORECASE)
NON_SECRET_KEYS = ("spark.sql.mapKeyDedupPolicy",)  # only its name looks like a secret
MASKED = "***"


@dataclass(frozen=True, slots=True, repr=False)
class SparkSettings:
    """Location and configuration of Spark. `conf` holds any Spark setting and takes precedence over every default.

        SparkSettings()                                                    # local[*]
        SparkSettings(master="spark://host:7077", conf={"spark.executor.memory": "8g"})
        SparkSettings(remote="sc://host:15002")                            # Spark Connect

    Without `master`, Spark's own sources decide (spark-submit, MASTER, spark-defaults.conf); the last resort is
    `local[*]`. A local master retries a failed task only on request: `local[4,3]` gives up at the third failure.
    """

    master: str | None = None
    remote: str | None = None
    app_name: str = "lance-assets"
    conf: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    log_level: str = "WARN"
    secrets: Collection[str] = ()
    """Names of settings in `conf` that are secret, in addition to those whose name or value looks like a secret."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "conf", {key: as_text(value) for key, value in self.conf.items()})
        for name, key in (("master", "spark.master"), ("remote", "spark.remote")):
            value, in_conf = getattr(self, name), self.settings.get(key)
            if value == "" or (value and in_conf and value != in_conf):
                masked, masked_conf = mask_secret(name, value), mask_secret(name, in_conf or "")
                raise InvalidInput(f"Spark's {name} is {masked!r}, {key} in conf is {masked_conf!r}: give one of them.")
            object.__setattr__(self, name, value or in_conf)
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
        """`conf` with all values as text, as Spark takes them."""
        return {key: as_text(value) for key, value in self.conf.items()}

    @property
    def requested(self) -> dict[str, str]:
        """All settings of the user, except the location of Spark and the application's name."""
        return {
            key: value
            for key, value in self.settings.items()
            if key not in ("spark.master", "spark.remote", *COSMETIC_KEYS)
        }

    @property
    def secret_keys(self) -> frozenset[str]:
        """Settings that no command line and no page of Spark may show."""
        return frozenset(
            key
            for key, value in self.settings.items()
            if key in self.secrets or is_hidden_variable(key) or mask_secret(key, value) != value
        )

    def __repr__(self) -> str:
        masked = {key: MASKED if key in self.secret_keys else value for key, value in self.settings.items()}
        remote = mask_secret("remote", self.remote) if self.remote else None
        return (
            f"SparkSettings(master={self.master!r}, remote={remote!r}, app_name={self.app_name!r}, "
            f"conf={masked!r}, log_level={self.log_level!r})"
        )


def mask_secret(key: str, value: str) -> str:
    """Return the value of a setting for display, masked if the key or the value itself looks like a secret."""
    if key in NON_SECRET_KEYS or value.lower() in ("true", "false"):
        return value
    is_secret = _SECRET_NAME.search(key) or _SECRET_IN_VALUE.search(value) or contains_secret(value)
    return MASKED if is_secret else value


def as_text(value: str | int | float | bool) -> str:
    """Return the value as Spark spells it, with booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_mebibytes(size: str | None) -> int | None:
    """Return a memory size of Spark's in mebibytes; `None` if it is not one. A bare number counts mebibytes."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", (size or "").strip().lower())
    if not match:
        return None
    return int(int(match[1]) * 1024.0 ** " kmgt".index(match[2] or "m") / 1024**2)
