"""Columns that are found in JSON values. The tests check the rule for types, and that the order of the values
has no effect. They also check that no value is stored only in part."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.pipeline.values import json_inference, json_rows
from moldau.pipeline.values.ddl import parse_ddl, render_ddl, render_type
from moldau.pipeline.values.json import PIECE_VALUES, decode_json, find_json
from moldau.pipeline.values.json_inference import FoundValues, JsonColumns, columns_of


def encoded(*values: Any) -> list[bytes]:
    return [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]


def found_in(values: Sequence[bytes], table: pa.DataType | None = None) -> JsonColumns:
    found = FoundValues()
    find_json(pa.array(values, pa.binary()), found)
    return columns_of(found.finish(), table)


def infer(*values: Any) -> str:
    found = found_in(encoded(*values)).type
    if found is None:
        return ""
    return render_ddl(found) if pa.types.is_struct(found) else render_type(found)


def export(*values: Any) -> tuple[list[Any], dict[int, str]]:
    """The table with these values, and the rejected values."""
    columns, odd = found_in(encoded(*values))
    found, rejected = decode_json(
        pa.array(encoded(*values), pa.binary()), columns or pa.struct([]), whole=odd
    )
    return found.to_pylist(), rejected


POSITIONS = {
    "top": lambda value: {"x": value},
    "nested": lambda value: {"a": {"b": {"x": value}}},
    "element": lambda value: {"a": [{"x": value}, {}]},
    "array": lambda value: {"a": [[value], []]},
}
MANY = 200


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], "BIGINT"),
        ([1, 2.5], "DOUBLE"),
        ([2**60, 2.5], "DOUBLE"),
        ([2**53 + 1, 2.5], "STRING"),
        ([1, 2**63], "DECIMAL(38, 0)"),
        ([2**64, 1.5], "STRING"),
        ([10**38 - 1, -(10**38) + 1], "DECIMAL(38, 0)"),
        ([10**38], "STRING"),
        ([10**5000], "STRING"),
        ([True, False], "BOOLEAN"),
        ([True, "true"], "STRING"),
        ([True, 1], "STRING"),
        ([1, "1"], "STRING"),
        (["a", None], "STRING"),
        ([{"y": 1}, 5], "STRING"),
        ([{"y": 1}, [1]], "STRING"),
        ([{"y": 1}, {"z": "a"}, None], "STRUCT<y: BIGINT, z: STRING>"),
        ([[1], [2.5], []], "ARRAY<DOUBLE>"),
        ([[1], ["a"]], "ARRAY<STRING>"),
        (["3 pcs", *range(MANY)], "BIGINT"),
        (["3 pcs", "4 pcs", "5 pcs", *range(MANY)], "STRING"),
        ([5, *map(str, range(MANY))], "STRING"),
        ([5, *({"y": one} for one in range(MANY))], "STRUCT<y: BIGINT>"),
        ([2**63, *(one / 2 for one in range(MANY))], "DOUBLE"),
        ([{"y": 1}, *(one / 2 for one in range(MANY))], "DOUBLE"),
    ],
    ids=range(25),
)
def test_the_type_of_values_is_the_same_in_every_position(values: list[Any], expected: str) -> None:
    texts = [_text(value) for value in values]
    found = set()
    for place in POSITIONS.values():
        documents = [json.dumps(place("@")).replace('"@"', text).encode() for text in texts]
        for order in (documents, documents[::-1]):
            columns = found_in(order).type
            assert columns is not None
            found.add(render_type(_type_at(columns)))
    assert found == {expected}


def _text(value: Any) -> str:
    """The JSON text of a value, also for integers that are too long for Python's own conversion."""
    return "1" + "0" * 5000 if value == 10**5000 else json.dumps(value)


def _type_at(columns: pa.DataType) -> pa.DataType:
    """The type of a column at a position, which ``POSITIONS`` describes."""
    names = [field.name for field in columns]
    if names == ["x"]:
        return columns.field("x").type
    (inside,) = (field.type for field in columns)
    if pa.types.is_struct(inside):
        return _type_at(inside.field(0).type)
    element = inside.value_type
    return _type_at(element) if pa.types.is_struct(element) else element.value_type


def test_an_odd_value_among_many_is_the_only_dead_letter() -> None:
    values = [{"qty": "3 pcs"}, *({"qty": one} for one in range(10_000))]
    rows, rejected = export(*values)
    assert rejected == {0: 'qty: "3 pcs" is no BIGINT'}
    assert [row["qty"] for row in rows[1:]] == list(range(10_000))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("nothing", [[], [None], {}, {"a": None}])
def test_a_value_among_many_that_contain_nothing_is_stored(nothing: Any, position: str) -> None:
    values = [POSITIONS[position](one) for one in [*[nothing] * MANY, 5]]
    assert "STRING" in infer(*values)
    rows, rejected = export(*values)
    assert not rejected
    assert "'5'" in str(rows[-1])


def test_text_holds_each_value_as_it_was_written() -> None:
    values = [b'{"a": 1.50}', b'{"a": "x"}', b'{"a": {"b": [1, "\xc3\xbe"]}}', b'{"a": 18446744073709551616}',
              b'{"a": true}', b'{"a": null}', b'{"a": 1e999}', b'{"a": [ ]}']  # fmt: skip
    rows, rejected = export(*values)
    assert not rejected
    assert [row["a"] for row in rows] == [
        "1.50", "x", '{"b": [1, "þ"]}', "18446744073709551616", "true", None, "1e999", "[ ]",
    ]  # fmt: skip


def test_names_that_differ_in_case_are_one_column() -> None:
    values = [
        {"total": 1},
        {"total": 2},
        {"Total": 3},
        {"Total": 4, "total": 5},
        {"a": {"B": 1}},
        {"A": {"b": 2}},
    ]
    rows, rejected = export(*values)
    assert infer(*values) == "A STRUCT<B: BIGINT>, total BIGINT"
    assert [row and row["total"] for row in rows] == [1, 2, 3, None, None, None]
    assert [row and row["A"] for row in rows[4:]] == [{"B": 1}, {"B": 2}]
    assert set(rejected) == {3}
    assert "is there more than once" in rejected[3]


@pytest.mark.parametrize(
    "odd",
    [
        b'{"": 1, "a": {"b": 1}}',
        b'{"  ": {"b": 1}}',
        b'{"a": {"": "x"}}',
        b'{"a": {"b": 1}, "a.b": 2}',
        b'{"%s": 1}' % (b"n" * 256),
    ],
)
def test_a_member_that_no_column_can_have_makes_a_dead_letter(odd: bytes) -> None:
    rows, rejected = export(
        b'{"a": {"b": 1}}', odd, b'{"a": {"b": 2}, "": null, "a.b": {}}', b'{"a": {"b": 3}}'
    )
    assert set(rejected) == {1}
    assert [row and row["a"]["b"] for row in rows] == [1, None, 2, 3]


@pytest.mark.parametrize(
    "value",
    [b'{"a": 1, "a": 2}', b'{"a": 1, "a": 1}', b'{"b": {"c": 1, "c": 1}}', b'{"a": 1, "\\u0061": 2}'],
)
def test_a_repeated_name_makes_a_dead_letter(value: bytes) -> None:
    rows, rejected = export(value, {"a": 1, "b": {"c": 1}})
    assert set(rejected) == {0}
    assert "is there more than once" in rejected[0]
    assert rows[1] == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    "value",
    [
        b'{"x": 1, "x": null}',
        b'{"x": 1, "x" :[null]}',
        b'{"x":1,"b":{"c":null},"x"\r:{ }}',
        b'{"b": {"x": [1, 2], "x": {}}}',
        b'{"b": {"s": ":", "x": 1, "x": null}}',
        b'{"": 1, "": null}',
        b'{"a.b": {"x": 1, "x": {}}, "": 5}',
    ],
)
def test_the_last_value_of_a_name_does_not_hide_the_others(value: bytes) -> None:
    rows, rejected = export({"a": 1, "b": {"c": 1}}, value, {"a": None, "b": {"c": 2, "y": ":"}})
    assert set(rejected) == {1}
    assert rows[2]["b"]["c"] == 2


@pytest.mark.parametrize(
    "value",
    [
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": "\xff"}',
        b'{"z": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"\xff": 1}',
        b"{'a': 1}",
        b'{"a": 1} {}',
    ],
)
def test_values_that_are_not_json_are_rejected(value: bytes) -> None:
    rows, rejected = export({"a": "x"}, value)
    assert infer({"a": "x"}, value) == "a STRING"
    assert set(rejected) == {1}
    assert rows[0] == {"a": "x"}


def test_deep_values_are_text_below_the_last_level() -> None:
    deep: Any = {"leaf": 5}
    for _ in range(100):
        deep = {"a": deep}
    rows, rejected = export({"a": {"a": 1}, "b": 1}, deep, deep)
    assert not rejected
    assert rows[0]["b"] == 1
    (found,), _ = export(deep)
    levels = 0
    while isinstance(found, dict):
        (found,) = found.values()
        levels += 1
    assert levels == json_inference.LEVELS_MAX
    assert json.loads(found)
    for _ in range(100):
        deep = {"a": deep}
    assert export(deep)[1] == {0: "more than 200 levels deep"}


def test_an_object_of_very_many_names_is_text() -> None:
    values = [{"id": one, "counts": {f"k{one}": 1, f"m{one}": 2}} for one in range(json_inference.NAMES_MAX)]
    rows, rejected = export(*values)
    assert infer(*values) == "counts STRING, id BIGINT"
    assert not rejected
    assert json.loads(rows[7]["counts"]) == {"k7": 1, "m7": 2}
    flat = [{f"k{one}": 1, f"m{one}": 2} for one in range(json_inference.NAMES_MAX)]
    assert infer(*flat) == "STRING"
    rows, rejected = export(*flat)
    assert not rejected
    assert json.loads(rows[7]) == {"k7": 1, "m7": 2}


def test_very_many_names_take_bounded_memory() -> None:
    found = FoundValues()
    for first in range(0, 10 * json_inference.POSITIONS_MAX, 1000):
        names = {f"k{number}": number for number in range(first, first + 1000)}
        found.add(json.dumps({"id": first, "more": names}).encode())
    assert sum(json_inference._counts_of_levels(found.finish().root)) <= json_inference.POSITIONS_MAX
    columns = columns_of(found, None)
    assert columns.type is not None
    assert render_ddl(columns.type) == "id BIGINT, more STRING"


def test_a_table_keeps_its_columns() -> None:
    table = parse_ddl("b BIGINT, a STRUCT<x: STRING>, l ARRAY<STRUCT<y: BIGINT>>")
    values = encoded({"B": "text", "a": {"x": 1, "z": 1}}, {"l": [{"y": "t", "w": None}, {"v": 1}], "c": 1})
    columns = found_in(values, table)
    assert columns.type is not None
    assert render_ddl(columns.type) == (
        "b BIGINT, a STRUCT<x: STRING, z: BIGINT>, l ARRAY<STRUCT<y: BIGINT, v: BIGINT>>, c BIGINT"
    )
    assert columns.odd  # B and b share one column
    many = encoded(*({f"k{number}": 1} for number in range(json_inference.NAMES_MAX + 1)))
    assert found_in(many, table) == (table, True)
    assert found_in(many, pa.string()) == (pa.string(), False)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**53 + 1, 2**63, -(2**63), 2**64, 10**38, 10**60]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "x", "1", "true", "2031-05-17", "ž"]),
)
KEYS = st.sampled_from(["a", "A", "b", "a.b", "", "c d"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(DOCUMENTS, max_size=12), st.randoms(use_true_random=False), st.integers(1, 100))
def test_order_and_units_make_no_difference(documents: list[Any], dice: random.Random, times: int) -> None:
    """Any order of the values and any split into units results in the same columns, and in the same row
    for each value."""
    values = encoded(*documents, *documents[:1] * times)
    columns = found_in(values)
    order = list(range(len(values)))
    dice.shuffle(order)
    units: list[list[bytes]] = [[] for _ in range(dice.randint(1, 4))]
    for at in order:
        dice.choice(units).append(values[at])
    together = FoundValues()
    for unit in units:
        one = FoundValues()
        find_json(pa.array(unit, pa.binary()), one)
        together.merge(one.finish())
    assert columns_of(together, None) == columns
    column = columns.type or pa.struct([])
    found, rejected = decode_json(pa.array(values, pa.binary()), column, whole=columns.odd)
    shuffled = [values[at] for at in order]
    again, rejected_again = decode_json(pa.array(shuffled, pa.binary()), column, whole=columns.odd)
    assert [again[at].as_py() for at in range(len(order))] == [found[at].as_py() for at in order]
    assert rejected_again == {at: rejected[was] for at, was in enumerate(order) if was in rejected}


@settings(max_examples=100, deadline=None)
@given(st.lists(DOCUMENTS, max_size=12), st.sampled_from([json_inference.MISFITS_SHARE, 3]))
def test_each_value_is_stored_whole_or_is_a_dead_letter(documents: list[Any], share: int) -> None:
    """The type of a column may be chosen although some values do not fit this type. With a small ``share``,
    such a type is likely even if there are few values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_inference, "MISFITS_SHARE", share)
        columns, odd = found_in(encoded(*documents))
    column = columns or pa.struct([])
    found, rejected = decode_json(pa.array(encoded(*documents), pa.binary()), column, whole=odd)
    for row, document in enumerate(documents):
        if columns is None:
            assert is_nothing(document) or row in rejected
        elif row not in rejected:
            assert stored(document, found[row].as_py(), column), (document, found[row])


def stored(value: Any, found: Any, column: pa.DataType) -> bool:
    """Whether a column's value is equal to the JSON value. The comparison does not use the tested code."""
    if value is None:
        return found is None
    if column == pa.string():
        return bool(found == value) if isinstance(value, str) else json.loads(found) == value
    if pa.types.is_struct(column):
        if not isinstance(value, dict) or not isinstance(found, dict):
            return False
        names = {field.name.lower(): field for field in column}
        full = {name.lower() for name, one in value.items() if one is not None}
        for name, one in value.items():
            field = names.get(name.lower())
            if one is None and name.lower() in full:
                # Another member, whose name differs only in case, has the value of the shared column.
                continue
            if field is None:
                if not is_nothing(one):
                    return False
            elif not stored(one, found[field.name], field.type):
                return False
        return True
    if pa.types.is_list(column):
        return (
            isinstance(value, list)
            and len(value) == len(found)
            and all(stored(one, other, column.value_type) for one, other in zip(value, found, strict=True))
        )
    if isinstance(value, bool) or isinstance(found, bool):
        return value is found
    return bool(value == found)


def is_nothing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_nothing(one) for one in value.values())
    return value is None or (isinstance(value, list) and all(is_nothing(one) for one in value))


def test_the_number_of_counted_positions_is_bounded_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit for the number of positions. In one order of the values it is reached early, and in
    the other order late."""
    monkeypatch.setattr(json_inference, "POSITIONS_MAX", 12)
    monkeypatch.setattr(json_inference, "_LOOK_EVERY", 1)
    values = encoded(
        {"a": {"b": {"c": 1}}}, *({"a": {f"n{one}": {"m": 1}}} for one in range(8)), {"z": 1}, {"y": {"x": 1}}
    )
    expected = found_in(values)
    for seed in range(20):
        order = random.Random(seed).sample(values, len(values))
        assert found_in(order) == expected
    assert expected.type is not None
    assert render_ddl(expected.type) == "a STRING, y STRING, z BIGINT"


def test_reasons_are_one_short_line() -> None:
    values = [{"a": 1}, {"a": "line\nline" * 99}, b'{"a": [1,\n2]}', {"a\nb": 1, "": 2}]
    columns = parse_ddl("a BIGINT")
    _, rejected = decode_json(pa.array(encoded(*values), pa.binary()), columns, whole=True)
    assert set(rejected) == {1, 2, 3}
    for reason in rejected.values():
        assert reason.isprintable()
        assert len(reason) < 200


def test_a_value_that_does_not_fit_makes_few_other_values_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    rewrite = json_rows.Rewriter.rewrite

    def counted(self: json_rows.Rewriter, value: bytes) -> bytes:
        nonlocal looked_at
        looked_at += 1
        return rewrite(self, value)

    monkeypatch.setattr(json_rows.Rewriter, "rewrite", counted)
    values = encoded(*({"a": one} for one in range(10_000)), {"a": "x"})
    found, rejected = decode_json(pa.array(values, pa.binary()), parse_ddl("a BIGINT"))
    assert set(rejected) == {10_000}
    assert found.field("a").to_pylist() == [*range(10_000), None]
    assert looked_at <= PIECE_VALUES
