"""Dagster assets over Lance tables."""
