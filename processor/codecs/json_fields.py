"""Column access to JSON without Python objects: declared top-level fields in and out, every other byte left alone.

`FieldReader` finds the declared fields where they lie in the records' bytes; `FieldWriter` replaces or appends
fields in those bytes. A numba scanner does both for what it is sure of. msgspec decides the rest, so the answer is
always msgspec's; only the time differs.
"""

from millstream.processor.codecs.json_field_reader import Column, FieldColumns, FieldReader
from millstream.processor.codecs.json_field_types import Field, FieldType
from millstream.processor.codecs.json_field_writer import FieldWriter

__all__ = ["Column", "Field", "FieldColumns", "FieldReader", "FieldType", "FieldWriter"]
