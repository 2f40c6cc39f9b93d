"""Full-text index (INVERTED): how texts become terms, the files of a segment, and ranked searches. Start with
`analyzer.py` for terms, `inverted.py` for builds and `segment_reader.py` for the files."""
