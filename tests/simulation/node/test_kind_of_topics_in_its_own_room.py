"""A kind of topics that is fixed at creation needs only one row (a ``TopicKind``) and the ``KindClaim`` of a
subsystem. The metadata keep the kind of a topic in the log and in snapshots. The controller reads the row for
its decisions."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from simulated_cluster import Cluster

from moldau.cluster.controller import controller
from moldau.cluster.decisions.kinds import levels, table
from moldau.cluster.decisions.kinds.kind import TopicKind
from moldau.cluster.decisions.view import View
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic
from moldau.config.keys.rows import boolean
from moldau.config.topic_config import TOPIC
from moldau.protocol.messages import describe_configs, incremental_alter_configs
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.schema import Message
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import StopReason
from moldau.runtime import ErrorCode
from moldau.server import composition, settings
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.partitions.classic_kind import ClassicKind
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.topics.partition_kinds import KindClaim, PartitionKind
from moldau.simulation.clients.rpc import RpcConnection
from moldau.simulation.world.world import World
from moldau.storage.log.config import LogConfig

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

NODE, LATEST_VERSIONS = 11, {19: 7, 37: 3, 44: 1, 32: 4, 57: 2}
KEY, FEATURE = "sealed.enable", "moldau.sealed.version"
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "1"}


def _reason_against(view: View, name: str, configs: Mapping[str, str]) -> str | None:
    return "A sealed topic has one copy of each record." if "cleanup.policy" in configs else None


SEALED = TopicKind(
    name="sealed",
    config_key=KEY,
    feature=SupportedFeature(FEATURE, 0, 1),
    reason_against=_reason_against,
    owners=lambda view, count: [7 + index for index in range(count)],
    no_chunks="its records stay where they are",
    replicas_hold_data=True,
    has_remote_tier=False,
)


class SealedKind(PartitionKind[ClassicPartition]):
    """Opens classic partitions, and records the opened partitions."""

    def __init__(self, classic: ClassicKind) -> None:
        self._classic = classic
        self.opened: list[tuple[str, int]] = []

    def log_config(self, topic: Topic) -> LogConfig | None:
        return self._classic.log_config(topic)

    def open(self, topic: Topic, index: int) -> ClassicPartition:
        self.opened.append((topic.name, index))
        return self._classic.open(topic, index)

    def apply_role(self, partition: ClassicPartition, topic: Topic, applied: Callable[[], None]) -> None:
        self._classic.apply_role(partition, topic, applied)

    def reconfigure(self, partition: ClassicPartition) -> None:
        self._classic.reconfigure(partition)

    def close(self, partition: ClassicPartition, reason: StopReason) -> None:
        self._classic.close(partition, reason)


class SealedSubsystem(Subsystem):
    """The subsystem that serves the topics of the new kind."""

    def __init__(self, partitions: PartitionsSubsystem) -> None:
        self.kind = SealedKind(partitions.classic)

    def contribution(self) -> Contribution:
        return Contribution(kinds=[KindClaim(self.kind, SEALED.is_kind_of)])


class WithSealed(composition.Composition):
    """The composition with one more line, which adds the new kind's subsystem."""

    def add(self, subsystem: composition.S) -> composition.S:
        super().add(subsystem)
        if isinstance(subsystem, PartitionsSubsystem):
            super().add(SealedSubsystem(subsystem))
        return subsystem


@pytest.fixture
def sealed_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the new kind for one test: its line in the table of kinds, the row of the topic's config, and the
    line in the composition."""
    monkeypatch.setitem(TOPIC._keys, KEY, boolean(KEY, False, "Whether a topic is sealed."))
    kinds = table.checked_kinds(*table.KINDS, SEALED)
    for module in (table, levels, controller, composition):
        monkeypatch.setattr(module, "KINDS", kinds)
    monkeypatch.setitem(settings.SUPPORTED_FEATURES, FEATURE, (0, 1))
    monkeypatch.setattr(composition, "Composition", WithSealed)


async def _ask(request: Message) -> Any:
    connection = await RpcConnection.open("admin", f"node-{NODE}", 9092)
    try:
        return await connection.request(request.API_KEY, LATEST_VERSIONS[request.API_KEY], request)
    finally:
        connection.close()


async def _create(name: str, **configs: str) -> CreatableTopicResult:
    values = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1, configs=values)
    answer = await _ask(CreateTopicsRequest(topics=[topic]))
    result: CreatableTopicResult = answer.topics[0]
    return result


async def _begin() -> None:
    """Raise the level of the kind, and create a topic of the kind and a topic of the default kind."""
    refused = await _create("letters", sealed_enable="true")
    assert refused.error_message is not None
    assert f"raise it with `moldau cluster upgrade {FEATURE}=1`" in refused.error_message
    level = FeatureUpdateKey(feature=FEATURE, max_version_level=1, upgrade_type=1)
    assert (await _ask(UpdateFeaturesRequest(feature_updates=[level]))).error_code is ErrorCode.none
    for name, configs in (("letters", {"sealed_enable": "true"}), ("notes", {})):
        created = await _create(name, **configs)
        assert (created.error_code, created.error_message) == (ErrorCode.none, None)
    more = [CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("letters", "notes")]
    answer = await _ask(CreatePartitionsRequest(topics=more))
    assert [each.error_code for each in answer.results] == [ErrorCode.none] * 2


async def _check_answers() -> None:
    """The kind's config is described. Requests that the row does not allow are refused."""
    named = describe_configs.DescribeConfigsResource(
        resource_type=2, resource_name="letters", configuration_keys=[KEY]
    )
    described = await _ask(describe_configs.DescribeConfigsRequest(resources=[named]))
    assert [(each.name, each.value) for each in described.results[0].configs] == [(KEY, "true")]
    refused = await _create("both", sealed_enable="true", cleanup_policy="compact")
    assert refused.error_code is ErrorCode.invalid_config
    assert refused.error_message == "A sealed topic has one copy of each record."
    change = incremental_alter_configs.AlterableConfig(name=KEY, value="false")
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=2, resource_name="letters", configs=[change]
    )
    altered = await _ask(incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource]))
    assert altered.responses[0].error_message == f"{KEY} of topic letters was fixed when it was created."
    lower = FeatureUpdateKey(feature=FEATURE, max_version_level=0, upgrade_type=2)
    lowered = await _ask(UpdateFeaturesRequest(feature_updates=[lower]))
    assert lowered.error_message == (
        f"Topic letters is sealed: {FEATURE} can be 0 when no such topic is left."
    )


def _check_kept(cluster: Cluster) -> None:
    node = cluster.nodes[NODE]
    assert node.metadata is not None
    topics = {topic.name: topic for topic in node.metadata.publisher.image.topics}
    found = {name: table.kind_of(topics[name]).name for name in ("letters", "notes")}
    assert found == {"letters": "sealed", "notes": "classic"}
    assert [each.owner for each in topics["letters"].partitions] == [7, 8, 7]
    assert SEALED.load(node.metadata.publisher.image) == {7: 2, 8: 1}
    assert sorted(node.get(SealedSubsystem).kind.opened) == [("letters", index) for index in range(3)]


@pytest.mark.usefixtures("sealed_topics")
@pytest.mark.parametrize("properties", [{}, SNAPSHOTS], ids=["from the log", "from a snapshot"])
def test_a_topic_keeps_its_kind_over_a_restart(properties: dict[str, str]) -> None:
    with World(1) as world:
        cluster = Cluster(world, {NODE: "broker,controller"}, {NODE: properties})

        async def story() -> None:
            for work in (_begin, _check_answers):
                cluster.start(NODE)
                await cluster.until(lambda: NODE in cluster.nodes)
                await cluster.nodes[NODE].get(PartitionsSubsystem).settled()
                await cluster.on("admin", work())
                await cluster.nodes[NODE].get(PartitionsSubsystem).settled()
                _check_kept(cluster)
                process = world.host(f"node-{NODE}").process
                assert process is not None
                await asyncio.sleep(1)
                files = world.host(f"node-{NODE}").disk.mount(process).list("/data/__cluster_metadata-0")
                assert (len([name for name in files if name.endswith(".checkpoint")]) > 1) == bool(properties)
                cluster.kill(NODE)

        world.run(story())
