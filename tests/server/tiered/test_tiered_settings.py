"""``remote.log.*`` keys configure the managers and the metadata topic. Errors name the key."""

import asyncio
from typing import cast

import pytest
import tiered_plugins

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.metrics import Meters
from moldau.runtime import Machine
from moldau.server.subsystems.tiered import settings as tiered_settings
from moldau.tiered.metadata.topic import MetadataTopic
from moldau.tiered.metadata.topic_based_manager import TopicBasedRemoteLogMetadataManager
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager

STORAGE = "remote.log.storage.manager.class.name"
METADATA = "remote.log.metadata.manager.class.name"
NO_TOPIC = cast(MetadataTopic, None)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine.real()


def config(**keys: str) -> BrokerConfig:
    given = {"node.id": "7", "log.dirs": "/data", **keys}
    return BrokerConfig(given)


def storage(machine: Machine, **keys: str) -> object:
    return tiered_settings.storage_manager(config(**keys), "cluster", machine, Meters())


def metadata(machine: Machine, given: BrokerConfig) -> object:
    hosted = tiered_settings.metadata_manager(
        given, "c", machine, Meters(), NO_TOPIC, lambda: None, lambda _: 0
    )
    return hosted.manager


def test_the_built_in_storage_manager_takes_its_own_url_or_that_of_the_wal(machine: Machine) -> None:
    for keys in ({"rsm.config.url": "memory://"}, {"diskless.storage.url": "memory://"}):
        assert isinstance(storage(machine, **keys), ObjectStorageManager)
    named = storage(machine, **{"rsm.config.url": "memory://", "rsm.config.prefix": "/a/b/"})
    assert isinstance(named, ObjectStorageManager)
    assert named.prefix == "a/b"
    with pytest.raises(ConfigError, match=r"set rsm\.config\.url, diskless\.storage\.url or remote\.log"):
        storage(machine)
    with pytest.raises(ConfigError, match=r"rsm\.config\.url.*ftp://x"):
        storage(machine, **{"rsm.config.url": "ftp://x"})


def test_a_plug_in_storage_manager(machine: Machine) -> None:
    keys = {STORAGE: "tiered_plugins.open_storage", "rsm.config.colour": "blue", "rsm.config.a.b": "c"}
    assert isinstance(storage(machine, **keys), ObjectStorageManager)
    assert tiered_plugins.GIVEN[-1] == {
        "colour": "blue",
        "a.b": "c",
        "broker.id": "7",
        "cluster.id": "cluster",
        "log.dir": "/data",
    }
    keys = {
        STORAGE: "tiered_plugins:open_storage",
        "remote.log.storage.manager.impl.prefix": "cold.",
        "cold.colour": "red",
    }
    with pytest.raises(
        ConfigError, match=f"{STORAGE} tiered_plugins:open_storage: colour: it must not be red"
    ):
        storage(machine, **keys)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org.apache.kafka.server.log.remote.storage.LocalTieredStorage", "a Python class or function"),
        ("tiered_plugins.Absent", "a Python class or function"),
        ("tiered_plugins.NO_MAKER", "is not callable"),
        ("nothing", "a Python class or function"),
        ("tiered_plugin_that_breaks.open", "cannot be loaded: ZeroDivisionError"),
        ("tiered_plugins.open_nothing", "made NoneType, which has no method .*close"),
        ("tiered_plugins.open_badly", "KeyError: 'colour'"),
    ],
)
def test_a_class_that_is_no_manager(machine: Machine, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{STORAGE} {name}.*{said}"):
        storage(machine, **{STORAGE: name})
    with pytest.raises(ConfigError, match=f"{METADATA} {name}.*{said}"):
        metadata(machine, config(**{METADATA: name}))


def test_the_metadata_manager_is_built_in_or_a_plug_in(machine: Machine) -> None:
    async def main() -> None:
        default = metadata(machine, config())
        assert isinstance(default, TopicBasedRemoteLogMetadataManager)
        await default.close()
        keys = {METADATA: "tiered_plugins.Takes", "rlmm.config.colour": "blue"}
        other = metadata(machine, config(**keys))
        assert isinstance(other, tiered_plugins.Takes)
        assert other.configs["colour"] == "blue"

    asyncio.run(main())


def test_the_metadata_topic_is_made_as_kafka_makes_it() -> None:
    topic = tiered_settings.metadata_topic(config())
    assert (topic.name, topic.partition_count, topic.replication_factor) == (REMOTE_LOG_METADATA_TOPIC, 50, 3)
    assert topic.configs["cleanup.policy"] == "delete"
    assert topic.configs["retention.ms"] == topic.configs["retention.bytes"] == "-1"
    # The key is accepted with the prefix, as in Kafka, and also without it.
    keys = {
        "remote.log.metadata.topic.num.partitions": "9",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "5",
        "remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.retention.ms": "1000",
    }
    topic = tiered_settings.metadata_topic(config(**keys))
    assert (topic.partition_count, topic.replication_factor, topic.configs["retention.ms"]) == (5, 1, "1000")
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        tiered_settings.metadata_topic(
            config(**{"rlmm.config.remote.log.metadata.topic.num.partitions": "none"})
        )
