import pytest

from moldau.runtime.recycled_memory import RecycledMemory


def test_memory_is_reused_when_its_last_view_is_freed() -> None:
    memory = RecycledMemory()
    first = memory.allocate(5_000)
    assert len(first) == 5_000
    first[:] = b"x" * 5_000
    part = first[4_000:]
    del first
    assert memory.kept_bytes == 0
    assert bytes(memory.allocate(6_000)[:10]) == bytes(10)  # the new view is a view of other memory
    assert bytes(part) == b"x" * 1_000
    kept_bytes = memory.kept_bytes
    del part
    assert memory.kept_bytes == kept_bytes + 8_192
    again = memory.allocate(8_192)
    assert bytes(again[:5_000]) == b"x" * 5_000


def test_the_size_of_kept_memory_is_bounded() -> None:
    memory = RecycledMemory(kept_bytes_max=10_000)
    views = [memory.allocate(4_096) for _ in range(5)]
    views.clear()
    assert memory.kept_bytes == 8_192


@pytest.mark.parametrize("size_bytes", [0, 1, 4_096, 4_097])
def test_memory_of_any_size_can_be_allocated(size_bytes: int) -> None:
    assert len(RecycledMemory().allocate(size_bytes)) == size_bytes
