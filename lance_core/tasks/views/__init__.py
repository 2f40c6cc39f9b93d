"""Materialized views: tables that follow another table by its change feed. Start with `refresh.py`."""

from lance_core.tasks.views.refresh import RefreshReport, Select, ViewDefinition, refresh, refresh_view

__all__ = ["RefreshReport", "Select", "ViewDefinition", "refresh", "refresh_view"]
