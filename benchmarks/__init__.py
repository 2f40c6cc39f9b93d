"""What we cost beside others, measured side by side: `python -m benchmarks`, or `make bench`.

A workload is one file in `workloads/`; `harness.py` runs it, `report.py` turns times into ratios,
`machine.py` says what it ran on, `text.py` prints. Nothing of the product imports this. How to read the
numbers: `BENCHMARKS.md`.
"""
