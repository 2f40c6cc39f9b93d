"""Pictures in metadata: small SVG images, as Dagster's pages show them in markdown.

    svg.py      a picture out of boxes, lines and words; start here

What a picture shows is drawn from facts that are handed in. Nothing here looks at a table, or at Dagster.
"""
