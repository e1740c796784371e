"""The partitions of a cut that have records in remote segments. Pure."""

from moldau.backup.restore.tiered_logs import RemoteChain, RemoteSegments, remote_chain
from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.tiered.metadata.segments import TopicIdPartition

__all__ = ["remote_chains", "without_tier"]


def remote_chains(segments: RemoteSegments, image: MetadataImage) -> dict[TopicIdPartition, RemoteChain]:
    """The remote segments of classic tiered partitions. ``image`` has the metadata of the cut."""
    chains: dict[TopicIdPartition, RemoteChain] = {}
    for topic in image.topics:
        config = image.config(ResourceType.TOPIC, topic.name)
        if DISKLESS.is_kind_of(topic) or config.get("remote.storage.enable", "").lower() != "true":
            continue
        for index in range(len(topic.partitions)):
            name = TopicIdPartition(topic.topic_id, topic.name, index)
            chain = remote_chain(segments.finished(name))
            if chain is not None:
                chains[name] = chain
    return chains


def without_tier(segments: RemoteSegments, image: MetadataImage) -> list[str]:
    """One line for each partition with remote records. A restore that has no access to the remote segments
    does not restore these records."""
    return [
        f"remote records of {topic.name}-{index}: remote.log.storage.system.enable is false"
        for topic in image.topics
        for index in range(len(topic.partitions))
        if segments.finished(TopicIdPartition(topic.topic_id, topic.name, index))
    ]
