"""Checks of versions: what each may look at, and what it finds. `check.py` says what a check is."""

from lance_assets.checks.check import Check, Finding, Seen, Severity

__all__ = ["Check", "Finding", "Seen", "Severity"]
