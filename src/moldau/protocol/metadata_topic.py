"""The name of the cluster metadata log. The log has the form of a topic with one partition, but it is not a
topic."""

from typing import Final

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
