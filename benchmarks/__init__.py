"""Benchmarks: time this library and its peers side by side with `python -m benchmarks` or `make bench`.

A workload is one file in `workloads/`. `harness.py` runs it, `report.py` turns times into ratios, `machine.py`
describes the machine and `text.py` prints the report. The product imports nothing of this package. `BENCHMARKS.md`
explains how to read the numbers.
"""
