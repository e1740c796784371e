"""Consumer groups on a broker: their coordinators on ``__consumer_offsets``, their APIs and their meters."""

from collections.abc import Callable
from functools import partial

from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.handlers import GroupHandlers
from moldau.coordinators.groups.service import GroupService
from moldau.coordinators.groups.settings import group_settings, offsets_topic
from moldau.coordinators.hosted import HostedKind, KindContext
from moldau.coordinators.topic_directory import ImageTopicDirectory
from moldau.metrics import Meters
from moldau.network.served import HandlerTable
from moldau.runtime.background import Background


class GroupCoordinators(HostedKind):
    """The group coordinators that this broker leads."""

    def __init__(self, context: KindContext) -> None:
        machine = context.machine
        self.service = GroupService(
            machine.clock,
            machine.entropy,
            group_settings(context.config),
            ImageTopicDirectory(context.image),
            machine.unexpected,
            machine.deletion_clock,
        )
        super().__init__("groups", self.service.runtime, offsets_topic(context.config))
        self._authorizer = context.authorizer
        self._background = Background()
        _watch(context.meters, self.service)

    def handlers(self) -> HandlerTable:
        return GroupHandlers(self.service, self._authorizer).table()

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Delete the offsets of deleted topics."""
        removed = delta.topics.removed.values()
        gone = {topic.name for topic in removed if image.topics.get(topic.name) is None}
        if gone:
            self._background.run(self.service.offsets.forget_topics(partial(_is_in, gone)))

    async def stop(self) -> None:
        await self._background.close()


def _is_in(topics: set[str], topic: str, partition: int) -> bool:
    return topic in topics


def _watch(meters: Meters, groups: GroupService) -> None:
    """Register the meters of Kafka's older group coordinator, and the meters of its newer group
    coordinator."""

    def count_of(*states: GroupState) -> Callable[[], float]:
        return lambda: sum(
            group.state in states
            for shard in groups.runtime.shards()
            for group in shard.classic.by_id.values()
        )

    managed = meters.scoped("kafka.coordinator.group", "GroupMetadataManager").gauge
    managed("NumGroups", count_of(*GroupState))
    for state in GroupState:
        managed(f"NumGroups{state.value}", count_of(state))
    managed("NumOffsets", lambda: sum(shard.offsets.store.count for shard in groups.runtime.shards()))

    tally = groups.tally
    coordinator = meters.scoped("kafka.server", "group-coordinator-metrics").gauge
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
