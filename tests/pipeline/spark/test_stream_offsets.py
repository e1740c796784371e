"""The end of each batch of a streaming query."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

from moldau.client.errors import ToolError
from moldau.pipeline.source.stream_offsets import StreamOffsets, StreamPlace, limited

places = st.dictionaries(
    st.builds(StreamPlace, st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 2**40), st.integers(-5, 10_000)),
    max_size=8,
)


@given(places, st.integers(1, 20_000))
def test_a_batch_contains_the_available_records_up_to_its_limit(
    spans: dict[StreamPlace, tuple[int, int]], records_max: int
) -> None:
    begins = {place: start for place, (start, _) in spans.items()}
    ends = {place: start + count for place, (start, count) in spans.items()}
    reached = limited(begins, ends, records_max)
    taken = {place: reached[place] - begins[place] for place in spans}
    assert all(0 <= taken[place] <= max(0, ends[place] - begins[place]) for place in spans)
    available = sum(max(0, count) for _, count in spans.values())
    assert sum(taken.values()) == min(available, records_max)


def test_a_batch_without_a_limit_contains_all_records() -> None:
    place = StreamPlace("a", 0)
    assert limited({place: 3}, {place: 9}, None) == {place: 9}


def test_offsets_survive_a_checkpoint() -> None:
    offsets = StreamOffsets({StreamPlace("b", 10): 7, StreamPlace("a", 2): 0}, {"a": "id-a", "b": "id-b"})
    content = offsets.to_json()
    assert content == {"a": {"2": 0}, "b": {"10": 7}, "@topicIds": {"a": "id-a", "b": "id-b"}}
    assert StreamOffsets.from_json(content) == offsets


@pytest.mark.parametrize("content", [{}, {"a": {"x": 1}, "@topicIds": {}}, {"a": 5, "@topicIds": {}}])
def test_other_offsets_are_refused(content: dict[str, object]) -> None:
    with pytest.raises(ToolError):
        StreamOffsets.from_json(content)


def test_a_topic_of_another_id_is_another_topic() -> None:
    first = StreamOffsets({}, {"a": "1"})
    assert first.same_topic(StreamOffsets({}, {"a": "1"}), "a")
    assert not first.same_topic(StreamOffsets({}, {"a": "2"}), "a")
    assert first.same_topic(StreamOffsets({}, {}), "a")
