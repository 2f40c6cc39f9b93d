"""The demo: a table of orders, loaded by a Dagster job through Spark, one version a day.

    python -m lance_assets.demo        run it, then print the table's history
    python -m lance_assets.demo ui     look at it in Dagster's web UI

Everything it makes is in one folder, `.demo` unless LANCE_ASSETS_DEMO names another.
"""
