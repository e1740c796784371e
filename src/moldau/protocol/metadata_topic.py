"""The name of the cluster metadata log. The log has the form of a topic with one partition, but it is not a
topic."""

from typing import Final

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CLUSTER_METADATA_FOLDER: Final = f"{CLUSTER_METADATA_TOPIC}-0"
"""The name of the folder with the log's files."""
