from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ColumnMetadata(_message.Message):
    __slots__ = ("pages", "buffer_offsets", "buffer_sizes")
    class Page(_message.Message):
        __slots__ = ("buffer_offsets", "buffer_sizes", "length", "encoding", "priority")
        BUFFER_OFFSETS_FIELD_NUMBER: _ClassVar[int]
        BUFFER_SIZES_FIELD_NUMBER: _ClassVar[int]
        LENGTH_FIELD_NUMBER: _ClassVar[int]
        ENCODING_FIELD_NUMBER: _ClassVar[int]
        PRIORITY_FIELD_NUMBER: _ClassVar[int]
        buffer_offsets: _containers.RepeatedScalarFieldContainer[int]
        buffer_sizes: _containers.RepeatedScalarFieldContainer[int]
        length: int
        encoding: PageEncoding
        priority: int
        def __init__(self, buffer_offsets: _Optional[_Iterable[int]] = ..., buffer_sizes: _Optional[_Iterable[int]] = ..., length: _Optional[int] = ..., encoding: _Optional[_Union[PageEncoding, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...
    PAGES_FIELD_NUMBER: _ClassVar[int]
    BUFFER_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_SIZES_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[ColumnMetadata.Page]
    buffer_offsets: _containers.RepeatedScalarFieldContainer[int]
    buffer_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pages: _Optional[_Iterable[_Union[ColumnMetadata.Page, _Mapping]]] = ..., buffer_offsets: _Optional[_Iterable[int]] = ..., buffer_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class PageEncoding(_message.Message):
    __slots__ = ("deferred", "direct")
    class Deferred(_message.Message):
        __slots__ = ("position", "size")
        POSITION_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        position: int
        size: int
        def __init__(self, position: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...
    class Direct(_message.Message):
        __slots__ = ("encoding",)
        ENCODING_FIELD_NUMBER: _ClassVar[int]
        encoding: bytes
        def __init__(self, encoding: _Optional[bytes] = ...) -> None: ...
    DEFERRED_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    deferred: PageEncoding.Deferred
    direct: PageEncoding.Direct
    def __init__(self, deferred: _Optional[_Union[PageEncoding.Deferred, _Mapping]] = ..., direct: _Optional[_Union[PageEncoding.Direct, _Mapping]] = ...) -> None: ...

class TypedMessage(_message.Message):
    __slots__ = ("type_url", "value")
    TYPE_URL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    type_url: str
    value: bytes
    def __init__(self, type_url: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class ArrayEncoding(_message.Message):
    __slots__ = ("flat", "nullable", "fixed_size_list", "list", "struct", "binary", "dictionary", "fsst", "packed_struct", "bitpacked", "fixed_size_binary", "bitpacked_for_non_neg", "constant")
    FLAT_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    FIXED_SIZE_LIST_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_FIELD_NUMBER: _ClassVar[int]
    FSST_FIELD_NUMBER: _ClassVar[int]
    PACKED_STRUCT_FIELD_NUMBER: _ClassVar[int]
    BITPACKED_FIELD_NUMBER: _ClassVar[int]
    FIXED_SIZE_BINARY_FIELD_NUMBER: _ClassVar[int]
    BITPACKED_FOR_NON_NEG_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    flat: FlatArray
    nullable: NullableArray
    fixed_size_list: FixedSizeListArray
    list: ListArray
    struct: bytes
    binary: BinaryArray
    dictionary: DictionaryArray
    fsst: FsstArray
    packed_struct: PackedStructArray
    bitpacked: BitpackedArray
    fixed_size_binary: FixedSizeBinaryArray
    bitpacked_for_non_neg: BitpackedArray
    constant: ConstantArray
    def __init__(self, flat: _Optional[_Union[FlatArray, _Mapping]] = ..., nullable: _Optional[_Union[NullableArray, _Mapping]] = ..., fixed_size_list: _Optional[_Union[FixedSizeListArray, _Mapping]] = ..., list: _Optional[_Union[ListArray, _Mapping]] = ..., struct: _Optional[bytes] = ..., binary: _Optional[_Union[BinaryArray, _Mapping]] = ..., dictionary: _Optional[_Union[DictionaryArray, _Mapping]] = ..., fsst: _Optional[_Union[FsstArray, _Mapping]] = ..., packed_struct: _Optional[_Union[PackedStructArray, _Mapping]] = ..., bitpacked: _Optional[_Union[BitpackedArray, _Mapping]] = ..., fixed_size_binary: _Optional[_Union[FixedSizeBinaryArray, _Mapping]] = ..., bitpacked_for_non_neg: _Optional[_Union[BitpackedArray, _Mapping]] = ..., constant: _Optional[_Union[ConstantArray, _Mapping]] = ...) -> None: ...

class BufferReference(_message.Message):
    __slots__ = ("index", "collection")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    index: int
    collection: int
    def __init__(self, index: _Optional[int] = ..., collection: _Optional[int] = ...) -> None: ...

class FlatArray(_message.Message):
    __slots__ = ("bits_per_value", "buffer", "compression")
    BITS_PER_VALUE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    bits_per_value: int
    buffer: BufferReference
    compression: bytes
    def __init__(self, bits_per_value: _Optional[int] = ..., buffer: _Optional[_Union[BufferReference, _Mapping]] = ..., compression: _Optional[bytes] = ...) -> None: ...

class NullableArray(_message.Message):
    __slots__ = ("no_nulls", "some_nulls", "all_nulls")
    class NoNulls(_message.Message):
        __slots__ = ("values",)
        VALUES_FIELD_NUMBER: _ClassVar[int]
        values: ArrayEncoding
        def __init__(self, values: _Optional[_Union[ArrayEncoding, _Mapping]] = ...) -> None: ...
    class SomeNulls(_message.Message):
        __slots__ = ("validity", "values")
        VALIDITY_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        validity: ArrayEncoding
        values: ArrayEncoding
        def __init__(self, validity: _Optional[_Union[ArrayEncoding, _Mapping]] = ..., values: _Optional[_Union[ArrayEncoding, _Mapping]] = ...) -> None: ...
    NO_NULLS_FIELD_NUMBER: _ClassVar[int]
    SOME_NULLS_FIELD_NUMBER: _ClassVar[int]
    ALL_NULLS_FIELD_NUMBER: _ClassVar[int]
    no_nulls: NullableArray.NoNulls
    some_nulls: NullableArray.SomeNulls
    all_nulls: bytes
    def __init__(self, no_nulls: _Optional[_Union[NullableArray.NoNulls, _Mapping]] = ..., some_nulls: _Optional[_Union[NullableArray.SomeNulls, _Mapping]] = ..., all_nulls: _Optional[bytes] = ...) -> None: ...

class FixedSizeListArray(_message.Message):
    __slots__ = ("dimension", "items")
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    dimension: int
    items: ArrayEncoding
    def __init__(self, dimension: _Optional[int] = ..., items: _Optional[_Union[ArrayEncoding, _Mapping]] = ...) -> None: ...

class ListArray(_message.Message):
    __slots__ = ("offsets", "null_offset_adjustment", "num_items")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    NULL_OFFSET_ADJUSTMENT_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    offsets: ArrayEncoding
    null_offset_adjustment: int
    num_items: int
    def __init__(self, offsets: _Optional[_Union[ArrayEncoding, _Mapping]] = ..., null_offset_adjustment: _Optional[int] = ..., num_items: _Optional[int] = ...) -> None: ...

class BinaryArray(_message.Message):
    __slots__ = ("indices", "bytes", "null_adjustment")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NULL_ADJUSTMENT_FIELD_NUMBER: _ClassVar[int]
    indices: ArrayEncoding
    bytes: ArrayEncoding
    null_adjustment: int
    def __init__(self, indices: _Optional[_Union[ArrayEncoding, _Mapping]] = ..., bytes: _Optional[_Union[ArrayEncoding, _Mapping]] = ..., null_adjustment: _Optional[int] = ...) -> None: ...

class DictionaryArray(_message.Message):
    __slots__ = ("indices", "items", "num_items")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    indices: ArrayEncoding
    items: ArrayEncoding
    num_items: int
    def __init__(self, indices: _Optional[_Union[ArrayEncoding, _Mapping]] = ..., items: _Optional[_Union[ArrayEncoding, _Mapping]] = ..., num_items: _Optional[int] = ...) -> None: ...

class FsstArray(_message.Message):
    __slots__ = ("binary",)
    BINARY_FIELD_NUMBER: _ClassVar[int]
    binary: ArrayEncoding
    def __init__(self, binary: _Optional[_Union[ArrayEncoding, _Mapping]] = ...) -> None: ...

class PackedStructArray(_message.Message):
    __slots__ = ("inner", "buffer")
    INNER_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    inner: _containers.RepeatedCompositeFieldContainer[ArrayEncoding]
    buffer: BufferReference
    def __init__(self, inner: _Optional[_Iterable[_Union[ArrayEncoding, _Mapping]]] = ..., buffer: _Optional[_Union[BufferReference, _Mapping]] = ...) -> None: ...

class BitpackedArray(_message.Message):
    __slots__ = ("compressed_bits_per_value", "uncompressed_bits_per_value", "buffer")
    COMPRESSED_BITS_PER_VALUE_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSED_BITS_PER_VALUE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    compressed_bits_per_value: int
    uncompressed_bits_per_value: int
    buffer: BufferReference
    def __init__(self, compressed_bits_per_value: _Optional[int] = ..., uncompressed_bits_per_value: _Optional[int] = ..., buffer: _Optional[_Union[BufferReference, _Mapping]] = ...) -> None: ...

class FixedSizeBinaryArray(_message.Message):
    __slots__ = ("bytes", "byte_width")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    bytes: ArrayEncoding
    byte_width: int
    def __init__(self, bytes: _Optional[_Union[ArrayEncoding, _Mapping]] = ..., byte_width: _Optional[int] = ...) -> None: ...

class ConstantArray(_message.Message):
    __slots__ = ("value", "num_values")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    num_values: int
    def __init__(self, value: _Optional[bytes] = ..., num_values: _Optional[int] = ...) -> None: ...

class PageLayout(_message.Message):
    __slots__ = ("mini_block", "constant", "full_zip", "blob")
    MINI_BLOCK_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    FULL_ZIP_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    mini_block: MiniBlockLayout
    constant: ConstantLayout
    full_zip: FullZipLayout
    blob: BlobLayout
    def __init__(self, mini_block: _Optional[_Union[MiniBlockLayout, _Mapping]] = ..., constant: _Optional[_Union[ConstantLayout, _Mapping]] = ..., full_zip: _Optional[_Union[FullZipLayout, _Mapping]] = ..., blob: _Optional[_Union[BlobLayout, _Mapping]] = ...) -> None: ...

class MiniBlockLayout(_message.Message):
    __slots__ = ("dictionary", "num_dictionary_items", "layers", "num_buffers", "repetition_index_depth", "num_items", "has_large_chunks")
    DICTIONARY_FIELD_NUMBER: _ClassVar[int]
    NUM_DICTIONARY_ITEMS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_BUFFERS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_INDEX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    HAS_LARGE_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    dictionary: bytes
    num_dictionary_items: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    num_buffers: int
    repetition_index_depth: int
    num_items: int
    has_large_chunks: bool
    def __init__(self, dictionary: _Optional[bytes] = ..., num_dictionary_items: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., num_buffers: _Optional[int] = ..., repetition_index_depth: _Optional[int] = ..., num_items: _Optional[int] = ..., has_large_chunks: bool = ...) -> None: ...

class ConstantLayout(_message.Message):
    __slots__ = ("layers", "inline_value", "num_repetition_values", "num_definition_values")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    INLINE_VALUE_FIELD_NUMBER: _ClassVar[int]
    NUM_REPETITION_VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_DEFINITION_VALUES_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    inline_value: bytes
    num_repetition_values: int
    num_definition_values: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., inline_value: _Optional[bytes] = ..., num_repetition_values: _Optional[int] = ..., num_definition_values: _Optional[int] = ...) -> None: ...

class FullZipLayout(_message.Message):
    __slots__ = ("bits_of_repetition", "bits_of_definition", "bits_per_value", "bits_per_offset", "num_items", "num_visible_items", "value_compression", "layers")
    BITS_OF_REPETITION_FIELD_NUMBER: _ClassVar[int]
    BITS_OF_DEFINITION_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_VALUE_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_VISIBLE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    VALUE_COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    bits_of_repetition: int
    bits_of_definition: int
    bits_per_value: int
    bits_per_offset: int
    num_items: int
    num_visible_items: int
    value_compression: CompressiveEncoding
    layers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bits_of_repetition: _Optional[int] = ..., bits_of_definition: _Optional[int] = ..., bits_per_value: _Optional[int] = ..., bits_per_offset: _Optional[int] = ..., num_items: _Optional[int] = ..., num_visible_items: _Optional[int] = ..., value_compression: _Optional[_Union[CompressiveEncoding, _Mapping]] = ..., layers: _Optional[_Iterable[int]] = ...) -> None: ...

class CompressiveEncoding(_message.Message):
    __slots__ = ("flat", "fixed_size_list")
    FLAT_FIELD_NUMBER: _ClassVar[int]
    FIXED_SIZE_LIST_FIELD_NUMBER: _ClassVar[int]
    flat: FlatValues
    fixed_size_list: FixedSizeListValues
    def __init__(self, flat: _Optional[_Union[FlatValues, _Mapping]] = ..., fixed_size_list: _Optional[_Union[FixedSizeListValues, _Mapping]] = ...) -> None: ...

class FlatValues(_message.Message):
    __slots__ = ("bits_per_value", "compression")
    BITS_PER_VALUE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    bits_per_value: int
    compression: bytes
    def __init__(self, bits_per_value: _Optional[int] = ..., compression: _Optional[bytes] = ...) -> None: ...

class FixedSizeListValues(_message.Message):
    __slots__ = ("items_per_value", "values", "has_validity")
    ITEMS_PER_VALUE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    HAS_VALIDITY_FIELD_NUMBER: _ClassVar[int]
    items_per_value: int
    values: CompressiveEncoding
    has_validity: bool
    def __init__(self, items_per_value: _Optional[int] = ..., values: _Optional[_Union[CompressiveEncoding, _Mapping]] = ..., has_validity: bool = ...) -> None: ...

class BlobLayout(_message.Message):
    __slots__ = ("inner_layout",)
    INNER_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    inner_layout: PageLayout
    def __init__(self, inner_layout: _Optional[_Union[PageLayout, _Mapping]] = ...) -> None: ...
