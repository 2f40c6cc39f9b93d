"""Pictures in metadata: small SVG images, as Dagster's pages show them in markdown.

    svg.py          a picture out of boxes, lines and words; start here
    fragment_map.py    the fragments of a version
    versions.py     the versions around one
    lineage.py      a version, and what it comes from

What a picture shows is handed in, as facts or as a table at a version. Nothing here looks at Dagster, or at rows.
"""
