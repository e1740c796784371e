"""A transaction survives a jump of its coordinator's clock."""

import asyncio
from typing import Any

import pytest

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.server.node import ServerNode
from moldau.server.settings import development_config
from moldau.simulation.clients.client import Bootstrap, SimulatedClient
from moldau.simulation.history import History
from moldau.simulation.seeds import stream
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

HOUR_MS = 3_600_000
PORT = 9092


async def node(machine: Machine) -> None:
    machine.disk.make_dirs("/data")
    machine.disk.sync_dir("/")
    properties = {"controller.listener.names": "CONTROLLER"}
    running = ServerNode(
        development_config("/data", PORT, properties, host="node-1"), machine, format_new=True
    )
    await running.start()
    raise RuntimeError(await running.failed())


async def until_done(client: SimulatedClient, api_key: ApiKey, version: int, request: Any) -> Any:
    while True:
        try:
            answer = await client.ask(api_key, version, request)
            if getattr(answer, "error_code", ErrorCode.none) is ErrorCode.none:
                return answer
        except (OSError, KafkaError):
            pass
        await client.pause()


def test_a_transaction_is_not_aborted_because_the_clock_jumps() -> None:
    with World(1, time_limit_s=300.0) as world:
        host = world.host("node-1")

        async def story() -> str:
            client = SimulatedClient(
                "producer", Bootstrap("node-1", PORT), History(world.loop.elapsed_s), stream(1, "producer")
            )
            await client.create_topic("events", 1, {})
            # The handler of this request creates __transaction_state.
            find = FindCoordinatorRequest(key_type=1, coordinator_keys=["t"])
            await client.ask(ApiKey.FIND_COORDINATOR, 4, find)
            opened = await until_done(
                client,
                ApiKey.INIT_PRODUCER_ID,
                4,
                InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=600_000),
            )
            topic = AddPartitionsToTxnTopic(name="events", partitions=[0])
            added = await client.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id="t",
                    v3_and_below_producer_id=opened.producer_id,
                    v3_and_below_producer_epoch=opened.producer_epoch,
                    v3_and_below_topics=[topic],
                ),
            )
            rows = added.results_by_topic_v3_and_below[0].results_by_partition
            assert rows[0].partition_error_code is ErrorCode.none
            host.clock.jump(HOUR_MS)
            await asyncio.sleep(60)
            request = DescribeTransactionsRequest(transactional_ids=["t"])
            described = await client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
            state: str = described.transaction_states[0].transaction_state
            return state

        async def main() -> str:
            host.start(node)
            process = world.host("producer").start(lambda _machine: story())
            assert process.main is not None
            found: str = await process.main
            return found

        assert world.run(main()) == "Ongoing"
