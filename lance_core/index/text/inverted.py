"""INVERTED index: the full-text index, a ranked index that returns the rows that match a text query best.

It answers equality and parts of texts in ordinary filters, with candidates (`filter_terms.py`). `builder.py` collects
the documents of a segment, and `segment_writer.py` writes it.
"""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from lance_core.errors import Corrupt, InvalidInput, MissingDependency, Unsupported
from lance_core.expressions.tree import Call, Comparison, In, Like
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.text_index import TEXT_TYPE_URL
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    IndexOptions,
    Leaf,
    Segment,
    SegmentBuild,
    SegmentExamination,
)
from lance_core.index.segment_files import SegmentSink
from lance_core.index.supported_types import is_json, is_list, is_plain, is_text
from lance_core.index.text.analyzers import analyzer_of
from lance_core.index.text.builder import TextBuilder
from lance_core.index.text.examination import examine
from lance_core.index.text.filter_search import FilterSearcher
from lance_core.index.text.filter_terms import required_terms
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.posting_decoder import BLOCK_DOCUMENTS
from lance_core.index.text.segment_merge import add_segment
from lance_core.index.text.segment_reader import TextSegment
from lance_core.index.text.segment_writer import SegmentWriter


class Inverted:
    name = "INVERTED"
    type_url = TEXT_TYPE_URL
    max_readable_version = 3
    written_version = 2
    supported_types = "text, lists of text, and JSON"

    def supports(self, column: pa.Field) -> bool:
        if is_json(column.type):
            return True
        value = column.type.value_field if is_list(column.type) else column
        return is_plain(column) and is_plain(value) and (is_text(value.type) or pa.types.is_string_view(value.type))

    def parse_options(self, parameters: Mapping[str, object]) -> IndexOptions:
        return TextParameters.of_options(parameters)

    def options_of(self, segment: Segment) -> TextParameters:
        """Return the parameters for a segment that replaces this one. It is written with blocks of 128 documents, even
        if this one has blocks of 256. Custom stop words are recorded only in the files of a segment."""
        return replace(TextSegment(segment).recorded_parameters(), block_size=BLOCK_DOCUMENTS)

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        """Answer conditions whose texts have terms. Custom stop words are unknown here, so that a search may still give
        no answer."""
        if not isinstance(leaf, Comparison | In | Like | Call):
            return None
        try:
            details = TextParameters.from_details(bytes(metadata.message.index_details.value))
            is_answered = details.document_granularity == "row" and required_terms(leaf, analyzer_of(details))
        except (Corrupt, Unsupported, MissingDependency):
            return None
        return Certainty.AT_MOST if is_answered else None

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        assert isinstance(build.options, TextParameters)
        parameters = build.options.for_column(build.column.type)
        if parameters.document_granularity == "list_element" and not is_list(build.column.type):
            raise InvalidInput(
                f"document_granularity='list_element' needs a list of texts, and column {build.column.name!r} has the "
                f"type {build.column.type}"
            )
        builder = TextBuilder(SegmentWriter(sink, parameters), analyzer_of(parameters))
        try:
            for merge_input in build.inputs:
                add_segment(builder, merge_input)
            for batch in build.rows:
                builder.add_texts(batch[VALUE], batch[ROW].to_numpy(zero_copy_only=False))
            builder.finish()
        finally:
            builder.close()
        return parameters.to_details()

    def open(self, segment: Segment, column: pa.Field) -> FilterSearcher:
        return FilterSearcher(TextSegment(segment))

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        return examine(segment)


INVERTED = Inverted()
