"""File export: workers write the rows of a version as files of other formats. This package never imports Spark.

Start with `version_export.py`; the reasons are in `001-complete-when-listed.md`.
"""
