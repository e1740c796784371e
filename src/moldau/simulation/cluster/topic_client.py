"""A client of the controllers: it creates, alters and deletes topics, and records the expected result."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.messages import create_topics, delete_topics, incremental_alter_configs
from moldau.protocol.schema import Message
from moldau.quorum.core.voters import VoterSet
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.simulation.history import History
from moldau.simulation.seeds import stream
from moldau.simulation.world.world import World

CHANGES_PER_CLIENT: Final = 25
ATTEMPT_TIMEOUT_MS: Final = 3_000
_RETRIABLE: Final = frozenset(
    {ErrorCode.not_controller, ErrorCode.invalid_replication_factor, ErrorCode.request_timed_out}
)
"""Errors after which a request is repeated. INVALID_REPLICATION_FACTOR is returned while every broker is
unregistered or fenced."""


class TopicClient:
    """Creates, alters and deletes its own topics, and records the expected result.

    If an attempt gets no response, it may be executed at any later time. Therefore the client makes no change
    that such an attempt could undo. It alters a topic once, and deletes the topic only if its first attempt
    created the topic.
    """

    def __init__(
        self,
        name: str,
        voters: VoterSet,
        world: World,
        history: History,
        on_acknowledged: Callable[[], None],
    ) -> None:
        self._name = name
        self._voters = list(voters)
        self._on_acknowledged = on_acknowledged
        self._chance = stream(world.seed, name)
        self._history = history
        self.present: dict[str, str | None] = {}
        """Topics whose creation was acknowledged, with the acknowledged value of ``retention.ms``."""
        self._absent: set[str] = set()
        self.deleted: set[str] = set()
        """Topics whose deletion was requested."""
        self._deletable: list[str] = []
        process = world.host(name).start(self._run)
        assert process.main is not None
        self.done: asyncio.Task[Any] = process.main

    async def _run(self, machine: Machine) -> None:
        client = RpcClient(machine.entropy, client_id=self._name)
        for number in range(CHANGES_PER_CLIENT):
            topic = f"{self._name}-{number}"
            if self._deletable and self._chance.random() < 0.3:
                await self._delete(client, self._deletable.pop())
            else:
                await self._create(client, topic)
                if self._chance.random() < 0.5:
                    await self._alter(client, topic, str(1_000_000 + number))
            await asyncio.sleep(self._chance.choice((0.05, 0.3, 1.0)))

    async def _create(self, client: RpcClient, topic: str) -> None:
        request = create_topics.CreateTopicsRequest(
            topics=[
                create_topics.CreatableTopic(
                    name=topic, num_partitions=self._chance.randint(1, 3), replication_factor=1
                )
            ],
            timeout_ms=ATTEMPT_TIMEOUT_MS,
        )
        attempts = await self._ask(
            client, request, lambda answer: answer.topics[0].error_code, ErrorCode.topic_already_exists
        )
        self.present[topic] = None
        if attempts == 1:
            self._deletable.append(topic)

    async def _alter(self, client: RpcClient, topic: str, retention_ms: str) -> None:
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=ResourceType.TOPIC,
                    resource_name=topic,
                    configs=[
                        incremental_alter_configs.AlterableConfig(
                            name="retention.ms", config_operation=0, value=retention_ms
                        )
                    ],
                )
            ]
        )
        attempts = await self._ask(client, request, lambda answer: answer.responses[0].error_code)
        self.present[topic] = retention_ms
        if attempts > 1 and topic in self._deletable:
            self._deletable.remove(topic)

    async def _delete(self, client: RpcClient, topic: str) -> None:
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=topic)], timeout_ms=ATTEMPT_TIMEOUT_MS
        )
        self.deleted.add(topic)
        await self._ask(
            client,
            request,
            lambda answer: answer.responses[0].error_code,
            ErrorCode.unknown_topic_or_partition,
        )
        del self.present[topic]
        self._absent.add(topic)

    async def _ask(
        self,
        client: RpcClient,
        request: Message,
        code_of: Callable[[Any], ErrorCode],
        *done_before: ErrorCode,
    ) -> int:
        """Send a request to one controller after another until one of them executes it.

        Returns 1 if it is certain that no earlier attempt was executed. Otherwise the result is larger than
        1. An error in ``done_before`` means that the change was already made. After an attempt without a
        response, such an error counts as success, because that attempt may have been executed.
        """
        lost = 0
        voters = self._voters
        position = self._chance.randrange(len(voters))
        while True:
            voter = voters[position % len(voters)]
            try:
                answer = await client.request(
                    voter.host, voter.port, request.API_KEY, None, request, ATTEMPT_TIMEOUT_MS
                )
            except KafkaError:
                lost += 1
                client.disconnect(voter.host, voter.port)
            else:
                code = code_of(answer)
                if code is ErrorCode.none or (lost and code in done_before):
                    self._on_acknowledged()
                    self._history.note(f"{self._name}: {type(request).__name__} is done at {voter.key.id}")
                    return lost + 1
                if code not in _RETRIABLE:
                    self._history.violate(f"{self._name}: {request} was answered with {code.name}")
                    return lost + 1
                # A former leader returns this error code for a change that may still be committed later.
                lost += code is ErrorCode.not_controller
            position += 1
            await asyncio.sleep(self._chance.uniform(0.05, 0.3))

    def check(self, node_id: int, image: MetadataImage) -> None:
        """Compare a node's image with the changes that were acknowledged to this client."""
        for topic, retention_ms in self.present.items():
            if image.topics.get(topic) is None:
                self._history.violate(f"{topic} was acknowledged and is lost at node {node_id}")
            elif image.config(ResourceType.TOPIC, topic).get("retention.ms") != retention_ms:
                self._history.violate(f"retention.ms of {topic} is lost at node {node_id}")
        for topic in self._absent:
            if image.topics.get(topic) is not None:
                self._history.violate(f"{topic} was deleted and is there at node {node_id}")
