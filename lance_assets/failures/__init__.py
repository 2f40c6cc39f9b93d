"""Failures: translation of core errors to Dagster retries and failures, and the run behind a conflict."""
