"""The features of Moldau that belong to no kind of topics. This module also finds the nodes that do not
support a feature level. Pure."""

from collections.abc import Iterator
from typing import Final

from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import CHUNK_FEATURE, OWN_PREFIX, MetadataImage
from moldau.cluster.image.parts.part import OwnPart
from moldau.cluster.image.parts.table import PARTS
from moldau.cluster.image.parts.topics import CHUNKS
from moldau.cluster.image.registrations import SupportedFeature
from moldau.runtime import ErrorCode, KafkaError

OWN_FEATURES: Final = PARTS.own_features
"""The features of Moldau that belong to no kind of topics. The module that declares the records of a feature
also declares the feature. In new clusters, the level of these features is 0, because no config enables them.
An operator can raise the level."""


def check_chunks_allowed(image: MetadataImage) -> None:
    """Raise ``KafkaError(unsupported_version)`` if no chunk can be created at the present level."""
    if not image.features.get(CHUNK_FEATURE, 0):
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"Chunks need {CHUNK_FEATURE} {CHUNKS.max_level}, and it is 0: raise it with"
            f" `moldau cluster upgrade {CHUNK_FEATURE}={CHUNKS.max_level}`.",
        )


def check_records_can_end(image: MetadataImage, feature: str) -> None:
    """Raise ``KafkaError(invalid_update_version)`` for level 0 of a feature while the image contains data
    from the feature's records. A snapshot at level 0 must not contain records of the feature.
    """
    for part in PARTS.parts:
        is_of = isinstance(part, OwnPart) and any(each.name == feature for each in part.features.values())
        if is_of and len(part.of(image)):
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"The metadata have {part.name}: {feature} can be 0 when they are removed.",
            )
    for topic in image.topics if feature == CHUNK_FEATURE else ():
        if any(partition.chunks for partition in topic.partitions):
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Topic {topic.name} has chunks: {feature} can be 0 when no inactive chunk is left.",
            )


def reasons_against(view: View, name: str, level: int) -> Iterator[str]:
    """Reasons why nodes of the cluster cannot work with a level. Each reason is a sentence without a full
    stop.

    This function checks all registered brokers, and all registered controllers that are voters or observers
    of the quorum. A voter that has not registered may be a node of Apache Kafka. Therefore it counts as a
    node that does not support Moldau's own features.
    """
    for broker in view.image.brokers.values():
        if not _supports(broker.feature(name), level):
            yield f"Broker {broker.broker_id} does not support {name} level {level}"
    members = view.members()
    for controller in view.image.controllers.values():
        if controller.controller_id not in members.voters | members.observers:
            continue  # the node was a controller earlier, and no longer takes part in the quorum
        if not _supports(controller.feature(name), level):
            yield f"Controller {controller.controller_id} does not support {name} level {level}"
    if name.startswith(OWN_PREFIX):
        for voter_id in sorted(members.voters):
            if view.image.controllers.get(voter_id) is None:
                yield f"Controller {voter_id} has not registered, so its supported levels are not known"


def _supports(feature: SupportedFeature | None, level: int) -> bool:
    return feature is not None and feature.supports(level)
