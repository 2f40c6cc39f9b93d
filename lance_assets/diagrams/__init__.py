"""Diagrams in metadata: small SVG images that Dagster's pages show in Markdown.

    svg.py                picture of rectangles, lines and text; start here
    fragment_map.py       the fragments of a version
    version_graph.py      the versions around one version
    lineage_diagram.py    a version and its sources
    recall_curve.py       recall of a vector search by partitions

Callers pass values, or a table at a version. The diagrams read no rows and do not call Dagster.
"""
