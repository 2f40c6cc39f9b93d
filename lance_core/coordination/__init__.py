"""Coordination of threads, processes and retries: single-flight, back-off, leases, idempotency and progress records.

No module of this package depends on table versions or commits; the packages above decide what to do with a lease or
record. Start with `idempotency.py`, which makes a repeated write harmless.
"""
