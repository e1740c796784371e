"""Calls Arrow's JSON parser for columns of values. Each value must be one JSON object.

The callers must check this before, for two reasons. Bytes that are not JSON can crash the process. And two
halves of an object in neighbouring records must not be read as one object.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

ParseErrors: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, UnicodeDecodeError)


def lines_of(values: pa.Array) -> pa.Buffer:
    """The values, each followed by a newline. None of the values may be null."""
    lines = pc.binary_join_element_wise(values, b"", b"\n")
    bounds = np.frombuffer(lines.buffers()[1], np.int32)
    return lines.buffers()[2].slice(0, int(bounds[len(lines)]))


def parse(lines: pa.Buffer, count: int, columns: pa.DataType) -> pa.Array:
    """Parse values to a column. Raises one of ``ParseErrors``."""
    table = pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(list(columns)), unexpected_field_behavior="ignore"
        ),
    ).combine_chunks()
    assert table.num_rows == count
    table.validate(full=True)  # checks that all text is UTF-8
    arrays = [table.column(field.name).combine_chunks() for field in columns]
    return pa.StructArray.from_arrays(arrays, fields=list(columns))


def is_parsed(raw: bytes, column: pa.DataType) -> bool:
    """Whether Arrow can parse one value to the type of a column."""
    columns = pa.struct([pa.field("value", column)])
    try:
        parse(pa.py_buffer(b'{"value":%s}\n' % raw), 1, columns)
    except ParseErrors:
        return False
    return True
