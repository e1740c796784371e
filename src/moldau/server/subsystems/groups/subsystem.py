"""Consumer groups: their coordinators on ``__consumer_offsets``, and their APIs."""

from collections.abc import Callable
from functools import partial

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.service import GroupService
from moldau.server.background import Background
from moldau.server.context import BrokerContext
from moldau.server.coordinators.entry import entry_of
from moldau.server.handlers.groups import GroupHandlers
from moldau.server.observing.meters import NodeMeters
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.groups.settings import group_settings, offsets_topic
from moldau.server.topics.topic_directory import ImageTopicDirectory


class GroupsSubsystem(Subsystem):
    """The group coordinators that this broker leads."""

    def __init__(self, context: BrokerContext) -> None:
        publisher, machine = context.metadata.publisher, context.machine
        self.service = GroupService(
            machine.clock,
            machine.entropy,
            group_settings(context.config),
            ImageTopicDirectory(lambda: publisher.image),
            machine.unexpected,
            machine.deletion_clock,
        )
        self._config = context.config
        self._authorizer = context.authorizer
        self._background = Background()
        _watch(context.meters, self.service)

    def contribution(self) -> Contribution:
        service = self.service
        handlers = GroupHandlers(service, self._authorizer).table()
        return Contribution(
            coordinators=[entry_of(service.runtime, offsets_topic(self._config), handlers)],
            checks={"groups": service.runtime.problem},
            notices={"groups": service.runtime.notice},
        )

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Delete the offsets of deleted topics."""
        removed = delta.topics.removed.values()
        gone = {topic.name for topic in removed if image.topics.get(topic.name) is None}
        if gone:
            self._background.run(self.service.offsets.forget_topics(partial(_is_in, gone)))

    async def drain(self) -> None:
        """Answer the members that wait for a rebalance, and unload all groups."""
        await self.service.close()

    async def stop(self) -> None:
        await self._background.close()


def _is_in(topics: set[str], topic: str, partition: int) -> bool:
    return topic in topics


def _watch(meters: NodeMeters, groups: GroupService) -> None:
    """Kafka's meters of the group coordinator, for both of its generations."""

    def count_of(*states: GroupState) -> Callable[[], float]:
        return lambda: sum(
            group.state in states
            for shard in groups.runtime.shards()
            for group in shard.classic.by_id.values()
        )

    managed = partial(meters.gauge, "kafka.coordinator.group", "GroupMetadataManager")
    managed("NumGroups", count_of(*GroupState))
    for state in GroupState:
        managed(f"NumGroups{state.value}", count_of(state))
    managed("NumOffsets", lambda: sum(shard.offsets.store.count for shard in groups.runtime.shards()))

    tally = groups.tally
    coordinator = partial(meters.gauge, "kafka.server", "group-coordinator-metrics")
    coordinator("group-count", count_of(*GroupState), protocol="classic")
    coordinator("offset-commit-count", lambda: tally.offset_commits)
    coordinator("offset-expiration-count", lambda: tally.offset_expirations)
    coordinator("offset-deletion-count", lambda: tally.offset_deletions)
    coordinator("group-completed-rebalance-count", lambda: tally.completed_rebalances)
    coordinator("num-partitions", lambda: len(groups.runtime.shards()), state="active")
    coordinator(
        "num-partitions",
        lambda: len(groups.runtime.partitions) - len(groups.runtime.shards()),
        state="loading",
    )
