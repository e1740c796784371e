"""The state of a new replica at the border of two chunks. The replica gets this state from a broker of the
active chunk, or from a broker that has the chunk before the border."""

import asyncio
from uuid import UUID

import pytest
from registered_chunks import chunk, partition

from moldau.chunks.calls import ChunkFileFetch, ChunkFilePiece
from moldau.chunks.reading import state_at_border
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.partition import PartitionRegistration
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.leader_epochs import EpochEntry

KEY = PartitionKey(UUID(int=1), 0)
CHUNKS = (chunk(0, 9, 1), chunk(10, 19, 1))
EPOCHS = b"0\n2\n0 0\n3 12\n"


class Holder:
    """A broker that sends the files of the second chunk, a few bytes at a time. ``state`` is the state that
    the brokers of the active chunk have."""

    def __init__(self, state: AuxiliaryState | None = None, **files: bytes) -> None:
        self.state = state
        self.files = {name.replace("_", "-"): content for name, content in files.items()}

    async def handed_over(self, key: PartitionKey, active: PartitionRegistration) -> AuxiliaryState | None:
        assert (key, active) == (KEY, partition(*CHUNKS))
        return self.state

    async def fetch_file(self, found: ChunkRegistration, wanted: ChunkFileFetch) -> ChunkFilePiece:
        assert found is CHUNKS[1]
        assert wanted[:3] == (*KEY, 10)
        if not wanted.name:
            return ChunkFilePiece({name: len(content) for name, content in self.files.items()}, b"", 0)
        return ChunkFilePiece({}, self.files[wanted.name][wanted.position : wanted.position + 4], 0)


def state(holder: Holder, border: int) -> AuxiliaryState:
    return asyncio.run(state_at_border(holder, KEY, partition(*CHUNKS), border, 5))  # type: ignore[arg-type]


def test_the_state_has_the_epochs_of_the_chunk() -> None:
    found = state(Holder(leader_epoch_checkpoint=EPOCHS), 20)
    assert (found.offset, found.log_start_offset, list(found.producers)) == (20, 5, [])
    assert [tuple(entry) for entry in found.leader_epochs] == [(0, 0), (3, 12)]


def test_the_brokers_of_the_active_chunk_have_the_state_although_no_broker_of_the_old_chunk_lives() -> None:
    handed_over = AuxiliaryState(20, 0, [EpochEntry(3, 12)], ())
    found = state(Holder(handed_over), 20)
    assert found == handed_over._replace(log_start_offset=5)


@pytest.mark.parametrize(
    ("holder", "border", "code"),
    [
        (Holder(leader_epoch_checkpoint=EPOCHS), 15, ErrorCode.offset_moved_to_tiered_storage),
        (Holder(leader_epoch_checkpoint=b"damaged"), 20, ErrorCode.corrupt_message),
    ],
)
def test_a_state_that_is_missing_or_damaged_is_refused(holder: Holder, border: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        state(holder, border)
    assert refused.value.code is code
