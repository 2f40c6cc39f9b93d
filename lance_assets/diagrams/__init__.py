"""Diagrams in metadata: small SVG images that Dagster's pages show in Markdown.

    svg.py                picture of rectangles, lines and text; start here
    fragment_map.py       the fragments of a version
    version_graph.py      the versions around one version
    lineage_diagram.py    a version and what it comes from
    recall_curve.py       recall of a vector search by partitions

Callers pass values, or a table at a version. Nothing here reads rows or calls Dagster.
"""
