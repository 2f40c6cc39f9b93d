"""Common helpers without Dagster or Spark: text formatting, SQL literals and version statistics."""
