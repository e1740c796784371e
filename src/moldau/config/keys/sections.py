"""All keys of a node by subject. They define a node's configuration, and the sections of the page
docs/configuration.md."""

from typing import Final

from moldau.config.definition import ConfigKey
from moldau.config.keys import groups, log, node, operations, replication, security, share, tiers

SECTIONS: Final[tuple[tuple[str, tuple[ConfigKey, ...]], ...]] = (
    ("The node", node.NODE),
    ("Listeners and connections", node.LISTENERS),
    ("Quorum and metadata log", node.QUORUM),
    ("Log", log.LOG),
    ("Compaction", log.CLEANER),
    ("Replication", replication.REPLICATION),
    ("Fetching", replication.FETCHING),
    ("Groups", groups.GROUPS),
    ("Share groups", share.SHARE),
    ("Committed offsets", replication.OFFSETS),
    ("Producers and transactions", replication.TRANSACTIONS),
    ("Quotas, metrics, security", operations.OPERATIONS),
    ("TLS", security.TLS),
    ("SASL", security.SASL),
    ("Tiered storage", tiers.TIERED),
    ("Diskless topics", tiers.DISKLESS),
    ("Moldau's own", tiers.MOLDAU),
)
