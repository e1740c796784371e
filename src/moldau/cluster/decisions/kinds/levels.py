"""The levels of Moldau's own features, and the check that a node supports them. Pure.

Nodes of Apache Kafka fail on an unknown feature level, and their snapshots drop Moldau's tagged fields of
metadata records. Therefore such a node cannot be in a cluster that has a level above 0. While such a node is
registered or part of the quorum, a level above 0 is refused. While a level is above 0, the registration of
such a node is refused.
"""

from collections.abc import Iterable

from moldau.cluster.decisions.kinds.table import KINDS
from moldau.cluster.image.image import OWN_PREFIX, MetadataImage
from moldau.cluster.image.registrations import SupportedFeature
from moldau.runtime import ErrorCode, KafkaError


def own_levels(image: MetadataImage) -> dict[str, int]:
    """Return the level of each of Moldau's own features, by name. Features at level 0 are left out."""
    levels = {name: int(level) for name, level in image.features.items() if name.startswith(OWN_PREFIX)}
    for kind in KINDS:
        if kind.feature is not None and kind.level(image):
            levels[kind.feature.name] = kind.level(image)
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
