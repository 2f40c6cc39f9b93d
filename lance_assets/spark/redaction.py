"""Redaction: extends the pattern by which Spark hides settings in its user interface and its event log.

Spark hides a setting if its name or value matches `spark.redaction.regex`. The default matches `spark.executorEnv.NAME`
only for some names, so a secret in an environment variable of the executors may be shown. A session of `open_session`
extends the pattern; for other sessions, `warn_of_exposed_references` names the setting to add.
"""

import logging
import re
from collections.abc import Collection, Mapping

from pyspark.sql import SparkSession

from lance_core.tasks.credentials import SPARK_REDACTS, referenced_variables

PATTERN_SETTING = "spark.redaction.regex"
EXECUTOR_VARIABLE = "spark.executorEnv."
_PLAIN_VARIABLES = r"PYTHON\w*|PYSPARK\w*|JAVA_HOME|LD_LIBRARY_PATH|PATH|HOME|TZ|LANG|LC_\w+|\w*NUM_THREADS"
"""Environment variables that Spark may show, because they help to find mistakes and hold no secrets."""
_EXECUTOR_VARIABLES = rf"spark[.]executorEnv[.](?!(?:{_PLAIN_VARIABLES})$)"

_log = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()
"""Application and environment variable of each warning."""


def extend_pattern(pattern: str | None, secret_keys: Collection[str]) -> str:
    """Return a redaction pattern that hides what `pattern` hides, the secret settings, and executor variables.

    `None` means Spark's default. An extended pattern is not extended again.
    """
    pattern = pattern or SPARK_REDACTS
    if _EXECUTOR_VARIABLES not in pattern:
        pattern = f"(?:{pattern})|{_EXECUTOR_VARIABLES}"
    keys = [_key_pattern(key) for key in sorted(secret_keys)]
    return "|".join([pattern, *(key for key in keys if key not in pattern)])


def _key_pattern(key: str) -> str:
    """Return a pattern for a setting. Spark also shows settings of Hadoop and Hive without their prefix."""
    prefix = next((prefix for prefix in ("spark.hadoop.", "spark.") if key.startswith(prefix)), "")
    return f"^(?:{re.escape(prefix)})?{re.escape(key[len(prefix) :])}$"


def is_hidden_variable(key: str) -> bool:
    """Return whether the setting is an environment variable of the executors that an extended pattern hides."""
    return re.search(_EXECUTOR_VARIABLES, key) is not None


def warn_of_exposed_references(
    spark: SparkSession, options: Mapping[str, object] | None, manifest_store: object
) -> None:
    """Log a warning for each referenced environment variable that Spark shows with its value to other users.

    The call continues: the value has been visible since the application started, so that refusing would hide nothing.
    """
    for name in referenced_variables(options, manifest_store):
        key = EXECUTOR_VARIABLE + name
        application = str(spark.conf.get("spark.app.id", ""))
        if (application, name) in _warned or spark.conf.get(key, None) is None:
            continue
        pattern = spark.conf.get(PATTERN_SETTING, None) or SPARK_REDACTS
        if not _is_redacted(spark, pattern, key):
            _warned.add((application, name))
            _log.warning(
                "%s holds a secret of a table, and Spark shows its value on the environment page, in the REST API and "
                "in the event log. Start the application with open_session or SparkSessionResource, or with the "
                "setting %s=%s, and replace the secret.",
                key,
                PATTERN_SETTING,
                f"{pattern}|{re.escape(key)}",
            )


def _is_redacted(spark: SparkSession, pattern: str, key: str) -> bool:
    """Return whether the pattern, a regular expression of Java, matches. Spark Connect has no Java in this process."""
    java = getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None
    if java is not None:
        return bool(java.java.util.regex.Pattern.compile(pattern).matcher(key).find())
    try:
        return re.search(pattern, key) is not None
    except re.error:
        return False
