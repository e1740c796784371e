"""Batches whose headers are changed at random and whose checksums are right. Correct producers send batches
at the same time.

The node responds to every request. Correct producers get a successful response in time. The node releases all
resources.
"""

import asyncio
import random
import struct

import pytest
from crc32c import crc32c

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.partitions import TopicPartition
from moldau.records import Compression, Record, build_batch
from moldau.runtime import ErrorCode
from moldau.simulation.checks.answers_checks import check_budgets, check_defects
from moldau.simulation.clients.client import Bootstrap, SimulatedClient
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.history import History
from moldau.simulation.stories.diskless_stories import story
from moldau.simulation.stories.tiny_node import PORT
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

EXAMPLES = 300
VERSION = 9
PROMPT_S = 4.9
"""Time limit for the correct producer, in virtual seconds. Its request has a time-out of five seconds. A slow
store and disk take up to three seconds."""
ANSWERED_S = 7.0
"""Time limit for malformed requests, because a request may have a time-out of five seconds."""
TOPICS = {"plain": "false", "diskless": "true"}

FIELDS = [
    (">q", 0), (">i", 8), (">i", 12), (">b", 16), (">h", 21), (">i", 23), (">q", 27), (">q", 35), (">q", 43),
    (">h", 51), (">i", 53), (">i", 57),
]  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    """A batch in which one to three fields were changed. Most changed fields have extreme values of their
    types."""
    records = [Record(n, 1_000 + n, b"k", b"v" * rng.choice([0, 10, 200])) for n in range(rng.choice([1, 3]))]
    sequence = rng.choice([-1, 0, 5])
    batch = bytearray(
        build_batch(
            records,
            compression=rng.choice([Compression.NONE, Compression.GZIP]),
            producer_id=-1 if sequence < 0 else rng.choice([0, 7]),
            producer_epoch=-1 if sequence < 0 else 0,
            base_sequence=sequence,
        )
    )
    for layout, position in rng.sample(FIELDS, rng.choice([1, 1, 2, 3])):
        bits = 8 * struct.calcsize(layout)
        (value,) = struct.unpack_from(layout, batch, position)
        most = (1 << bits - 1) - 1
        choices = [0, 1, -1, value + 1, value - 1, most, -most - 1, value ^ 1 << rng.randrange(bits - 1)]
        new = rng.choice([*choices, rng.randrange(-most - 1, most + 1)])
        struct.pack_into(layout, batch, position, max(-most - 1, min(most, new)))
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


async def produce(
    connection: RpcConnection, batches: dict[TopicPartition, bytes], within_s: float
) -> list[ErrorCode]:
    """Error codes, in the order of the partitions."""
    topics = [
        TopicProduceData(name=name, partition_data=[PartitionProduceData(index=index, records=batch)])
        for (name, index), batch in batches.items()
    ]
    request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics)
    answer = await connection.request(ApiKey.PRODUCE, VERSION, request, timeout_s=within_s)
    return [topic.partition_responses[0].error_code for topic in answer.responses]


async def fuzz(client: SimulatedClient, history: History) -> None:
    rng = client.chance
    for name, is_diskless in TOPICS.items():
        await client.create_topic(name, 3, {"diskless.enable": is_diskless})
    bad = await RpcConnection.open("fuzzer", "node-1", PORT)
    good = await RpcConnection.open("victim", "node-1", PORT)
    victims = {TopicPartition(name, 0): build_batch([Record(0, 1_000, None, b"good")]) for name in TOPICS}
    seen = set()
    for number in range(EXAMPLES):
        if bad.closed:
            bad = await RpcConnection.open("fuzzer", "node-1", PORT)
        batch = mutated(rng)
        # The broker handles a request for one partition on its fast path, and a request for two partitions on
        # its general path.
        topics = rng.choice([["plain"], ["diskless"], ["plain", "diskless"]])
        wanted = {TopicPartition(name, 1 + rng.randrange(2)): batch for name in topics}
        sent = asyncio.ensure_future(produce(bad, wanted, ANSWERED_S))
        try:
            codes = await produce(good, victims, PROMPT_S)
            if codes != [ErrorCode.none] * len(victims):
                history.violate(f"example {number}: the victim was answered {codes}; {batch.hex()}")
            seen.update(await sent)
        except TimeoutError:
            history.violate(f"example {number}: no answer in time; {batch.hex()}")
    if ErrorCode.none not in seen or len(seen) < 4:
        history.violate(f"the examples are poor: {seen}")
    bad.close()
    good.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_malformed_batch_gets_a_response_and_no_memory_leaks(seed: int) -> None:
    scenario = story(())
    with World(seed) as world:
        history = History(world.loop.elapsed_s)
        node = world.host("node-1")
        node.start(scenario.program)
        client = SimulatedClient("fuzzer", Bootstrap("node-1", PORT), history, random.Random(seed))

        async def run() -> None:
            process = world.host("clients").start(lambda _machine: fuzz(client, history))
            assert process.main is not None
            await process.main
            await check_budgets(node, history)
            check_defects(node, history)

        world.run(run())
        assert not history.violations
        assert not world.errors()
        assert not world.silences
