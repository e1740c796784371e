"""The configs of topics, brokers, groups and client metrics."""

from collections.abc import Iterator, Mapping
from typing import Final

from moldau.cluster.image.changes import Changes
from moldau.cluster.image.image import ConfigResource, ResourceType
from moldau.cluster.image.parts.part import ImageChanges, ImagePart
from moldau.cluster.image.parts.topics import TOPICS
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message

ConfigChanges = Changes[ConfigResource, Mapping[str, str]]


def config_records(
    configs: Mapping[ConfigResource, Mapping[str, str]] | PersistentMap[ConfigResource, Mapping[str, str]],
) -> Iterator[Message]:
    """Make the records of the configs, in the order of the resources and keys."""
    for (resource_type, resource_name), values in configs.items():
        for key in sorted(values):
            yield r.ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=key, value=values[key]
            )


def _replay(changes: ConfigChanges, record: r.ConfigRecord) -> None:
    resource = (record.resource_type, record.resource_name)
    values = dict(changes.get(resource) or {})
    if record.value is None:
        values.pop(record.name, None)
    else:
        values[record.name] = record.value
    if values:
        changes.put(resource, values)
    else:
        changes.remove(resource)


def _on_removed_topic(delta: ImageChanges, record: r.RemoveTopicRecord) -> None:
    resource = (ResourceType.TOPIC, delta.changes(TOPICS).name_of(record.topic_id))
    if delta.changes(CONFIGS).get(resource) is not None:
        delta.changes(CONFIGS).remove(resource)


CONFIGS: Final = ImagePart[PersistentMap[ConfigResource, Mapping[str, str]], ConfigChanges](
    name="configs",
    begin=Changes,
    records={r.ConfigRecord: _replay},
    to_records=config_records,
    effects={r.RemoveTopicRecord: _on_removed_topic},
)
