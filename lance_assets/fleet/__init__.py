"""Fleets: many tables below one prefix, maintained by one job with one report."""
