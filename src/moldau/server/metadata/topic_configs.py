"""The effective configurations of topics and of this broker, as of the current image."""

import logging
from collections.abc import Callable, Mapping

from moldau.cluster.image.image import MetadataImage, ResourceType
from moldau.config.broker import BrokerConfig
from moldau.config.topic_config import TOPIC, TopicConfig

logger = logging.getLogger(__name__)


class EffectiveConfigs:
    """Resolves configurations; cached while the image's configs are the same."""

    def __init__(self, static: BrokerConfig, node_id: int, image: Callable[[], MetadataImage]) -> None:
        self._static = static
        self._node_id = node_id
        self._image = image
        self._seen: object = None
        self._broker = static
        self._topics: dict[str, TopicConfig] = {}
        self._complaints: set[str] = set()

    @property
    def broker(self) -> BrokerConfig:
        """This broker's file, overridden by the cluster's dynamic configs."""
        self._refresh()
        return self._broker

    def topic(self, name: str) -> TopicConfig:
        """A topic's overrides on top of the broker's configuration."""
        self._refresh()
        found = self._topics.get(name)
        if found is None:
            overrides, unusable = TOPIC.usable(self._image().config(ResourceType.TOPIC, name))
            self._complain(f"topic {name}", unusable)
            found = self._topics[name] = TopicConfig.effective(self._broker, overrides)
        return found

    def _refresh(self) -> None:
        image = self._image()
        if image.configs is self._seen:
            return
        self._seen = image.configs
        self._topics.clear()
        self._broker = self._static.with_dynamic(
            image.config(ResourceType.BROKER, ""), image.config(ResourceType.BROKER, str(self._node_id))
        )
        self._complain("this broker", self._broker.unusable)

    def _complain(self, what: str, unusable: Mapping[str, str]) -> None:
        """Log once that a value in the cluster's metadata is unusable and that its key has the default
        instead.
        """
        for reason in unusable.values():
            if reason not in self._complaints:
                self._complaints.add(reason)
                logger.error("A dynamic config of %s is left out: %s", what, reason)
