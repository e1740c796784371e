"""Moldau's own feature levels, and checks for nodes that do not know them. Pure.

Nodes of Apache Kafka fail on an unknown feature level, and their snapshots drop Moldau's tagged fields of
metadata records. Therefore a level above 0 and such a node cannot be in one cluster. The level is refused
while such a node is registered or part of the quorum, and the node is refused while a level is above 0.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import CHUNK_FEATURE, OWN_PREFIX, MetadataImage
from moldau.cluster.image.registrations import SupportedFeature
from moldau.runtime import ErrorCode, KafkaError

DISKLESS_FEATURE: Final = "moldau.diskless.version"
DISKLESS_LATEST: Final = 1
"""Level 1: topics may be diskless, and their partition records name a coordinator in Moldau's own field."""
CHUNK_LATEST: Final = 1
"""Level 1: partitions may have inactive chunks, which have records of Moldau. Their partition records have
two fields of Moldau."""
OWN_FEATURES: Final = (SupportedFeature(CHUNK_FEATURE, 0, CHUNK_LATEST),)
"""Moldau's features that belong to no kind of topics. New clusters have level 0, because no setting says that
they will be used. An operator raises the level."""


def own_levels(image: MetadataImage) -> dict[str, int]:
    """Moldau's features above level 0, by name.

    Records of diskless topics count as level 1, because clusters that are older than the feature have such
    records without it.
    """
    levels = {name: int(level) for name, level in image.features.items() if name.startswith(OWN_PREFIX)}
    if len(image.topics.diskless_load):
        levels.setdefault(DISKLESS_FEATURE, 1)
    return levels


def check_knows_own_levels(
    image: MetadataImage, node: str, features: Iterable[SupportedFeature], code: ErrorCode
) -> None:
    """Raise ``KafkaError(code)`` if a node does not support one of Moldau's features at its present level.

    ``node`` is the node's name for the message, for example "Broker 4".
    """
    ranges = {feature.name: feature for feature in features}
    for name, level in sorted(own_levels(image).items()):
        supported = ranges.get(name)
        if supported is None:
            raise KafkaError(
                code,
                f"{node} does not know {name}, and the cluster has level {level}: nodes of Apache Kafka can"
                " join while every moldau.* feature level is 0 and no topic is diskless.",
            )
        if not supported.supports(level):
            raise KafkaError(
                code,
                f"{node} supports {name} {supported.min_level} to {supported.max_level}, and the cluster has"
                f" {level}.",
            )


def check_diskless_allowed(view: View, what: str) -> None:
    """Raise ``KafkaError(invalid_config)`` with the reason if no topic can be diskless at this level."""
    if own_levels(view.image).get(DISKLESS_FEATURE, 0):
        return
    reason = next(reasons_against(view, DISKLESS_FEATURE, DISKLESS_LATEST), None)
    advice = (
        f"raise it with `moldau cluster upgrade {DISKLESS_FEATURE}={DISKLESS_LATEST}`"
        if reason is None
        else f"it cannot be raised, because {reason[0].lower()}{reason[1:]}"
    )
    raise KafkaError(ErrorCode.invalid_config, f"{what} needs {DISKLESS_FEATURE} 1, and it is 0: {advice}.")


def check_chunks_allowed(image: MetadataImage) -> None:
    """Raise ``KafkaError(unsupported_version)`` if no chunk can be created at this level."""
    if not image.features.get(CHUNK_FEATURE, 0):
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"Chunks need {CHUNK_FEATURE} {CHUNK_LATEST}, and it is 0: raise it with"
            f" `moldau cluster upgrade {CHUNK_FEATURE}={CHUNK_LATEST}`.",
        )


def check_chunks_can_end(image: MetadataImage, feature: str) -> None:
    """Raise ``KafkaError(invalid_update_version)`` for level 0 of the feature while there are chunks."""
    if feature != CHUNK_FEATURE:
        return
    for topic in image.topics:
        if any(partition.chunks for partition in topic.partitions):
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Topic {topic.name} has chunks: {feature} can be 0 when no inactive chunk is left.",
            )


def reasons_against(view: View, name: str, level: int) -> Iterator[str]:
    """Reasons why nodes of the cluster cannot work with a level. Each reason is a sentence without a full
    stop.

    All registered brokers are checked, and all controllers that vote or follow the quorum. Voters that have
    not registered may be nodes of Apache Kafka. Therefore they do not support Moldau's own features.
    """
    for broker in view.image.brokers.values():
        if not _supports(broker.feature(name), level):
            yield f"Broker {broker.broker_id} does not support {name} level {level}"
    members = view.members()
    for controller in view.image.controllers.values():
        if controller.controller_id not in members.voters | members.observers:
            continue  # This node was a controller earlier.
        if not _supports(controller.feature(name), level):
            yield f"Controller {controller.controller_id} does not support {name} level {level}"
    if name.startswith(OWN_PREFIX):
        for voter_id in sorted(members.voters):
            if view.image.controllers.get(voter_id) is None:
                yield f"Controller {voter_id} has not registered, so its supported levels are not known"


def _supports(feature: SupportedFeature | None, level: int) -> bool:
    return feature is not None and feature.supports(level)
