"""The broker configs that are the defaults of topic configs. They can be found by the name of the broker
config and by the name of the topic config. The rows of the topic's keys declare which broker configs are
their defaults.
"""

from collections.abc import Mapping

from moldau.config.definition import Synonym
from moldau.config.keys.topic import TOPIC

TOPIC_SYNONYMS: Mapping[str, tuple[Synonym, ...]] = {key.name: key.synonyms for key in TOPIC if key.synonyms}

BROKER_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    synonym.name: tuple(other.name for other in group[position:])
    for group in TOPIC_SYNONYMS.values()
    if len(group) > 1
    for position, synonym in enumerate(group)
}
"""For each broker config that has synonyms, the names of the config itself and of its synonyms with lower
precedence. They are in order of precedence.
"""
