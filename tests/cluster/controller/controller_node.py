"""A single controller node with a log in memory, for tests in virtual time."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from cluster_fakes import SmallConfigPolicy
from metadata_log_model import MemoryMetadataLog

from moldau.cluster.controller.controller import Controller
from moldau.cluster.controller.service import ControllerService, LocalControllerChannel
from moldau.cluster.decisions.features import SUPPORTED_FEATURES
from moldau.cluster.decisions.view import ControllerSettings
from moldau.cluster.errors import MetadataError
from moldau.cluster.publisher import MetadataPublisher
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from moldau.runtime import SeededEntropy
from moldau.runtime.workers import InlineWorkers
from moldau.simulation.world.world import World

CLUSTER_ID = "MoldauServiceClusterId"

P = ParamSpec("P")
T = TypeVar("T")


class TurningWorkers(InlineWorkers):
    """Runs other tasks of the event loop before and after each job, and counts the jobs."""

    def __init__(self) -> None:
        self.pieces = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.pieces += 1
        await asyncio.sleep(0)
        result = function(*args, **kwargs)
        await asyncio.sleep(0)
        return result


class Node:
    """A single controller node with its own log."""

    def __init__(
        self,
        *,
        auto: bool = True,
        session_timeout_ms: int = 9_000,
        balance_interval_ms: int = 0,
        no_op_interval_ms: int = 0,
    ) -> None:
        self.log = MemoryMetadataLog(auto=auto)
        self.faults: list[MetadataError] = []
        self.publisher = MetadataPublisher(self.faults.append)
        settings = ControllerSettings(
            cluster_id=CLUSTER_ID,
            supported_features=SUPPORTED_FEATURES,
            session_timeout_ms=session_timeout_ms,
            leader_balance_interval_ms=balance_interval_ms,
            no_op_interval_ms=no_op_interval_ms,
        )
        self.controller = Controller(settings, SmallConfigPolicy(), SeededEntropy(1))
        self.workers = TurningWorkers()
        self.service = ControllerService(1, self.controller, self.log, self.publisher, self.workers)
        self.log.add_listener(self.publisher)
        self.log.add_listener(self.service)
        self.channel = LocalControllerChannel(self.service)

    async def lead(self) -> None:
        self.log.elect(1)
        self.log.commit()
        await asyncio.sleep(0)

    async def add_broker(
        self, broker_id: int = 1, *, incarnation: int | None = None, has_listener: bool = True
    ) -> int:
        response = await self.channel.send(
            BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id=CLUSTER_ID,
                incarnation_id=uuid.UUID(int=incarnation or broker_id),
                features=[
                    Feature(
                        name=each.name,
                        min_supported_version=each.min_level,
                        max_supported_version=each.max_level,
                    )
                    for each in SUPPORTED_FEATURES
                ],
                listeners=[
                    Listener(name="PLAINTEXT", host=f"host-{broker_id}", port=9092, security_protocol=0)
                ]
                if has_listener
                else [],
                log_dirs=[uuid.UUID(int=999 + broker_id)],
            )
        )
        epoch: int = response.broker_epoch
        await self.channel.send(
            BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=epoch)
        )
        return epoch

    def create(self, name: str) -> "asyncio.Task[Any]":
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        return asyncio.get_running_loop().create_task(self.channel.send(CreateTopicsRequest(topics=[topic])))


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time, so that a busy machine cannot let the session of a live broker expire."""
    with World(1) as world:
        world.run(test)
