"""Shared helpers without Dagster or Spark: text formatting, SQL literals, statistics of a version."""
