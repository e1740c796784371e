"""The names of the topics in which nodes keep their own state: their one home."""

from typing import Final

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
DISKLESS_METADATA_TOPIC: Final = "__diskless_metadata"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
