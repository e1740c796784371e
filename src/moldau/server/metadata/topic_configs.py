"""The effective configurations of topics and of this broker. They are computed from the current image."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.config.broker import BrokerConfig
from moldau.config.topic_config import TOPIC, TopicConfig

logger = logging.getLogger(__name__)

SHARED_MAX: Final = 1_000
"""Maximum number of cached configurations. Each set of overrides has its own configuration."""


class EffectiveConfigs:
    """Computes effective configurations.

    Topics with the same overrides share a configuration, which is cached until this broker's own
    configuration changes. Without the cache, a change of a thousand topics would block the event loop,
    because each topic's configuration would be computed separately.
    """

    def __init__(self, static: BrokerConfig, node_id: int, image: Callable[[], MetadataImage]) -> None:
        self._static = static
        self._node_id = node_id
        self._image = image
        self._seen: object = None
        self._broker = static
        self._dynamic: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._topics: dict[str, TopicConfig] = {}
        self._shared: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        """The cached configurations, by the overrides of the topics."""
        self._complaints: set[str] = set()

    @property
    def broker(self) -> BrokerConfig:
        """The effective configuration of this broker: the values of its configuration file, some of which are
        replaced by dynamic configs of the cluster."""
        self._refresh()
        return self._broker

    def topic(self, name: str) -> TopicConfig:
        """Return the broker's configuration, in which a topic's overrides replace values."""
        self._refresh()
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._resolved(name, self._image().config(ResourceType.TOPIC, name))
        return found

    def _resolved(self, name: str, overrides: Mapping[str, str]) -> TopicConfig:
        key = tuple(overrides.items())
        found = self._shared.get(key)
        if found is None:
            usable, unusable = TOPIC.usable(overrides)
            self._complain(f"topic {name}", unusable)
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            found = self._shared[key] = TopicConfig.effective(self._broker, usable)
        return found

    def _refresh(self) -> None:
        image = self._image()
        if image.configs is self._seen:
            return
        self._seen = image.configs
        self._topics.clear()
        dynamic = (
            image.config(ResourceType.BROKER, ""),
            image.config(ResourceType.BROKER, str(self._node_id)),
        )
        if dynamic == self._dynamic:
            return
        self._dynamic = dynamic
        self._shared.clear()
        self._broker = self._static.with_dynamic(*dynamic)
        self._complain("this broker", self._broker.unusable)

    def _complain(self, what: str, unusable: Mapping[str, str]) -> None:
        """Log that values in the cluster's metadata cannot be used, so that the defaults of their keys apply.
        The same problem is logged only once."""
        for reason in unusable.values():
            if reason not in self._complaints:
                self._complaints.add(reason)
                logger.error("A dynamic config of %s is left out: %s", what, reason)
