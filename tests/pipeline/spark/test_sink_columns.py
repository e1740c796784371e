"""Rows that are written to topics must have the column names of Spark's Kafka connector. Other columns are
refused, and the error names these columns."""

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from moldau.client.errors import ToolError
from moldau.pipeline.sink.writer import find_target
from moldau.pipeline.source.options import parse_options

NOBODY = "127.0.0.1:1"


def pair(key: DataType, value: DataType, name: str = "key") -> StructType:
    return StructType([StructField(name, key), StructField("value", value)])


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"key": BinaryType()}, "rows need a column 'value'"),
        ({"value": BinaryType()}, "rows need a column 'topic', or the option 'topic'"),
        ({"value": LongType(), "topic": StringType()}, "column 'value' is BINARY or STRING, not bigint"),
        ({"value": StringType(), "topic": BinaryType()}, "column 'topic' is STRING, not binary"),
        (
            {"value": StringType(), "topic": StringType(), "partition": LongType()},
            "column 'partition' is INTEGER, not bigint",
        ),
        *(
            (
                {"value": StringType(), "topic": StringType(), "headers": headers},
                "column 'headers' is ARRAY<ST",
            )
            for headers in (
                MapType(StringType(), BinaryType()),
                ArrayType(StringType()),
                ArrayType(pair(StringType(), StringType())),
                ArrayType(pair(StringType(), BinaryType(), "name")),
            )
        ),
    ],
)
def test_other_columns_are_refused_before_a_broker_is_asked(
    columns: dict[str, DataType], problem: str
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ToolError, match=problem):
        find_target(parse_options({"kafka.bootstrap.servers": NOBODY}), schema)


def test_the_connectors_columns_are_taken() -> None:
    schema = StructType(
        [
            StructField("key", StringType()),
            StructField("value", BinaryType()),
            StructField("headers", ArrayType(pair(StringType(), BinaryType()))),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
        ]
    )
    with pytest.raises(Exception, match="cannot connect"):
        find_target(parse_options({"kafka.bootstrap.servers": NOBODY}), schema)
