"""Demo: a table of orders that a Dagster job loads through Spark, one version per day.

    python -m lance_assets.demo        run it, then print the history of the table
    python -m lance_assets.demo ui     open it in Dagster's web UI

All files are in one folder: `.demo`, or the folder that LANCE_ASSETS_DEMO names.
"""
