"""Core errors as Dagster retries and failures, and the run that a conflict was lost to."""
