"""The persistent map behaves like a sorted dict that is copied at every step."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.cluster.image.persistent_map import CHUNK_ENTRIES_MAX, PersistentMap

steps = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 400), st.integers(), max_size=200),
        st.sets(st.integers(0, 400), max_size=200),
    ),
    max_size=8,
)


@given(steps)
def test_a_persistent_map_behaves_like_a_sorted_dict(changes: list[tuple[dict[int, int], set[int]]]) -> None:
    versions: list[tuple[PersistentMap[int, int], dict[int, int]]] = [(PersistentMap(), {})]
    for puts, removals in changes:
        map_before, model_before = versions[-1]
        model = {key: value for key, value in {**model_before, **puts}.items() if key not in removals}
        versions.append((map_before.updated(puts, removals), model))
    # Old versions are checked at the end. So the test detects later changes that wrongly affect an old
    # version.
    for map_, model in versions:
        assert list(map_.items()) == sorted(model.items())
        assert len(map_) == len(model)
        assert all(map_.get(key, None) == model.get(key) for key in range(401))
        assert map_ == PersistentMap(model)


def test_an_update_copies_one_chunk() -> None:
    before = PersistentMap({index: index for index in range(10_000)})
    after = before.put(5_000, -1)
    shared = {id(chunk) for chunk in before._chunks} & {id(chunk) for chunk in after._chunks}
    assert len(shared) == len(before._chunks) - 1
    assert max(map(len, after._chunks)) <= CHUNK_ENTRIES_MAX
    assert before[5_000] == 5_000
    assert after[5_000] == -1


def test_absent_keys_are_not_found_and_need_no_removal() -> None:
    map_ = PersistentMap({"b": 1})
    assert "a" not in map_
    assert map_.get("a") is None
    assert map_.without("a") is map_
    assert list(map_.without("b").items()) == []
