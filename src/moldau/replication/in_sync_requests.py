"""Sends the in-sync sets that this broker's leaders propose to the controller (AlterPartition, KIP-497).

There is one request at a time. A request contains all partitions that have a proposal. This module calls
:meth:`moldau.replication.leading.Leading.propose`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

from moldau.cluster.controller.channel import ControllerChannel
from moldau.metrics.replication import InSyncMeters
from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from moldau.protocol.partitions import PartitionKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.core.leader import InSyncProposal, ProposalFailure
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors

RETRY_S: Final = 0.05
"""The pause after a request that failed for at least one partition."""
PARTITIONS_A_REQUEST_MAX: Final = 1_000

_SUPERSEDED: Final = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_request,
        ErrorCode.invalid_update_version,
        ErrorCode.new_leader_elected,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors that show that the controller has newer metadata than the leader. The leader will receive these
metadata."""
_NOT_ATTEMPTED: Final = frozenset({ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted})

Proposals = dict[PartitionKey, tuple[ClassicPartition, InSyncProposal]]


class InSyncSets:
    """The in-sync sets of the partitions that this broker leads. This class is used on the event loop."""

    def __init__(
        self,
        local_id: int,
        channel: ControllerChannel,
        local_epoch: Callable[[], int],
        lag_ms_max: int,
        unexpected: UnexpectedErrors,
        meters: InSyncMeters,
    ) -> None:
        """``local_epoch`` returns the epoch of this broker's registration, or -1 before the registration.
        ``lag_ms_max`` is ``replica.lag.time.max.ms``. A follower that is not caught up stays in sync for this
        time."""
        self._local_id = local_id
        self._channel = channel
        self._local_epoch = local_epoch
        self._lag_ms_max = lag_ms_max
        self._unexpected = unexpected
        self._meters = meters
        self._led: dict[PartitionKey, ClassicPartition] = {}
        self._candidates: dict[PartitionKey, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.active_brokers: Mapping[int, int] = {}
        """Epochs of the brokers that may be in sync: neither fenced nor shutting down."""

    def lead(self, partition: ClassicPartition) -> None:
        """Begin to observe a partition that this broker leads."""
        self._led[partition.key] = partition

    def leave(self, partition: ClassicPartition) -> None:
        """Stop observing a partition. If a later replica of the same partition is already observed, that
        replica stays observed."""
        if self._led.get(partition.key) is partition:
            del self._led[partition.key]
            self._candidates.pop(partition.key, None)

    def consider(self, partition: ClassicPartition) -> None:
        """Check a partition soon, because a replica may be able to join its in-sync set."""
        if partition.key not in self._candidates:
            self._candidates[partition.key] = None
            self._wake.set()

    def brokers_changed(self, active: Mapping[int, int]) -> None:
        """Check all partitions, because the active brokers may have changed."""
        if active == self.active_brokers:
            return
        self.active_brokers = active
        for partition in self._replicated():
            partition.leading.brokers_changed()
            self._candidates[partition.key] = None
        self._wake.set()

    def start(self) -> None:
        """Start sending requests to the controller."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="in-sync sets")

    async def stop(self) -> None:
        """Stop sending requests."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _replicated(self) -> Iterable[ClassicPartition]:
        return [each for each in self._led.values() if each.leading.has_followers]

    async def _run(self) -> None:
        interval_s = max(self._lag_ms_max / 2000, RETRY_S)
        loop = asyncio.get_running_loop()
        look_at = loop.time() + interval_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(look_at):
                    await self._wake.wait()
            if loop.time() >= look_at:
                look_at = loop.time() + interval_s
                self._candidates.update(dict.fromkeys(each.key for each in self._replicated()))
            self._wake.clear()
            try:
                is_settled = await self._ask()
            except Exception as error:
                self._unexpected.report("asking for in-sync sets", error)
                is_settled = False
            if not is_settled:
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _ask(self) -> bool:
        """Send the current proposals. Returns False when the proposals must be checked again soon."""
        local_epoch = self._local_epoch()
        if local_epoch < 0:
            return not self._candidates
        proposals: Proposals = {}
        while self._candidates and len(proposals) < PARTITIONS_A_REQUEST_MAX:
            key = next(iter(self._candidates))
            del self._candidates[key]
            partition = self._led.get(key)
            if partition is None:
                continue
            proposal = partition.leading.propose(self._lag_ms_max, local_epoch)
            if proposal is not None:
                proposals[key] = partition, proposal
        if not proposals:
            return True
        try:
            response: AlterPartitionResponse = await self._channel.send(self._request(proposals, local_epoch))
        except KafkaError:
            return self._failed(proposals, ProposalFailure.UNKNOWN)
        if response.error_code is not ErrorCode.none:
            # If the whole request is refused, for example because of an old broker epoch, the outcome of an
            # earlier request with the same proposals is still unknown.
            return self._failed(proposals, ProposalFailure.UNKNOWN)
        return self._settle(proposals, response) and not self._candidates

    def _request(self, proposals: Proposals, local_epoch: int) -> AlterPartitionRequest:
        topics: dict[UUID, list[AlterPartitionRequestPartitionData]] = {}
        for key, (_, proposal) in proposals.items():
            row = AlterPartitionRequestPartitionData(
                partition_index=key.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
                    for member in proposal.members
                ],
                partition_epoch=proposal.partition_epoch,
            )
            topics.setdefault(key.topic_id, []).append(row)
        return AlterPartitionRequest(
            broker_id=self._local_id,
            broker_epoch=local_epoch,
            topics=[
                AlterPartitionRequestTopicData(topic_id=id, partitions=rows) for id, rows in topics.items()
            ],
        )

    def _settle(self, proposals: Proposals, response: AlterPartitionResponse) -> bool:
        is_settled = True
        for topic in response.topics:
            for row in topic.partitions:
                found = proposals.pop(PartitionKey(topic.topic_id, row.partition_index), None)
                if found is not None:
                    is_settled &= self._apply_result(*found, row)
        # If the response does not contain a partition, the outcome for this partition is unknown.
        return self._failed(proposals, ProposalFailure.UNKNOWN) and is_settled

    def _apply_result(
        self, partition: ClassicPartition, proposal: InSyncProposal, row: AlterPartitionResponsePartitionData
    ) -> bool:
        code = row.error_code
        if code is ErrorCode.none:
            partition.leading.committed(row.leader_epoch, tuple(row.isr), row.partition_epoch)
            # The leader's set cannot be compared, because the metadata with the change may arrive before
            # this response.
            self._meters.committed(proposal.former_size, len(row.isr))
            return True
        self._meters.failures.value += 1
        if code in _SUPERSEDED:
            partition.leading.failed(proposal, ProposalFailure.SUPERSEDED)
            return True
        failure = ProposalFailure.NOT_ATTEMPTED if code in _NOT_ATTEMPTED else ProposalFailure.UNKNOWN
        partition.leading.failed(proposal, failure)
        self._candidates[partition.key] = None
        return False

    def _failed(self, proposals: Proposals, failure: ProposalFailure) -> bool:
        for partition, proposal in proposals.values():
            partition.leading.failed(proposal, failure)
            self._candidates[partition.key] = None
        return not proposals
