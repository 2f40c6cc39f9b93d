"""Coordination of threads, processes and retries: single-flight, back-off, leases, idempotency and progress records.

Nothing in here knows a table version or commits; the packages above decide what to do with a lease or a record.
Start with `idempotency.py`, which makes a repeated write harmless.
"""
