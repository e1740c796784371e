"""The effective configurations of topics. All topics with the same overrides share one effective
configuration."""

from dataclasses import replace

from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage, ResourceType
from moldau.config.broker import BrokerConfig
from moldau.server.metadata.topic_configs import EffectiveConfigs

RETENTION = {"retention.ms": "1000"}


class Metadata:
    """An image with configs that a test changes."""

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        static = BrokerConfig({"node.id": "1", "process.roles": "broker,controller"})
        self.configs = EffectiveConfigs(static, 1, lambda: self.image)

    def set(self, kind: ResourceType, name: str, values: dict[str, str]) -> None:
        self.image = replace(self.image, configs=self.image.configs.put((kind, name), values))


def test_topics_with_the_same_overrides_share_a_configuration() -> None:
    metadata = Metadata()
    for index in range(100):
        metadata.set(ResourceType.TOPIC, f"t{index}", dict(RETENTION))
    found = {id(metadata.configs.topic(f"t{index}")) for index in range(100)}
    assert len(found) == 1
    assert metadata.configs.topic("t0").retention_ms == 1000
    assert metadata.configs.topic("another") is metadata.configs.topic("a topic without overrides")


def test_a_change_of_one_topic_keeps_the_configurations_of_the_others() -> None:
    metadata = Metadata()
    metadata.set(ResourceType.TOPIC, "kept", dict(RETENTION))
    kept, broker = metadata.configs.topic("kept"), metadata.configs.broker
    metadata.set(ResourceType.TOPIC, "changed", dict(RETENTION))
    assert metadata.configs.topic("changed") is kept
    metadata.set(ResourceType.TOPIC, "changed", {"retention.ms": "2000"})
    assert metadata.configs.topic("changed").retention_ms == 2000
    assert metadata.configs.topic("kept") is kept
    assert metadata.configs.broker is broker


def test_a_change_of_the_broker_reaches_every_topic() -> None:
    metadata = Metadata()
    metadata.set(ResourceType.TOPIC, "own", dict(RETENTION))
    assert metadata.configs.topic("own")["max.message.bytes"] != 4242
    metadata.set(ResourceType.BROKER, "", {"message.max.bytes": "4242"})
    assert metadata.configs.topic("own")["max.message.bytes"] == 4242
    assert metadata.configs.topic("inherits")["max.message.bytes"] == 4242
    metadata.set(ResourceType.BROKER, "1", {"message.max.bytes": "4343"})
    assert metadata.configs.topic("own")["max.message.bytes"] == 4343
    assert metadata.configs.topic("own").retention_ms == 1000
