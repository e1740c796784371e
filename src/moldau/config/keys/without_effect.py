"""Keys that are parsed and checked but have no effect yet, because their feature is not built."""

from collections.abc import Mapping
from types import MappingProxyType

from moldau.config.keys import security, share

_WAITING: Mapping[str, tuple[str, ...]] = {
    "further settings of clusters": (
        "controller.quorum.retry.backoff.max.ms",
        "controller.socket.timeout.ms",
        "follower.fetch.last.tiered.offset.enable",
        "request.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ),
    "a time limit for the start of a node": ("server.max.startup.time.ms",),
    "versions that are not final": ("unstable.api.versions.enable", "unstable.feature.versions.enable"),
    "the group protocols of KIP-848, KIP-932 and KIP-1071": (
        "group.consumer.assignors",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.max.size",
        "group.consumer.migration.policy",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.regex.refresh.interval.ms",
        "group.consumer.session.timeout.ms",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
        "group.share.max.record.lock.duration.ms",
        "group.share.max.session.timeout.ms",
        "group.share.max.size",
        "group.share.min.heartbeat.interval.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.min.session.timeout.ms",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "group.streams.heartbeat.interval.ms",
        "group.streams.initial.rebalance.delay.ms",
        "group.streams.max.heartbeat.interval.ms",
        "group.streams.max.session.timeout.ms",
        "group.streams.max.size",
        "group.streams.max.standby.replicas",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.num.standby.replicas",
        "group.streams.session.timeout.ms",
        *(key.name for key in share.SHARE),
    ),
    "quotas": (
        "controller.quota.window.num",
        "controller.quota.window.size.seconds",
        "quota.window.num",
        "quota.window.size.seconds",
    ),
    "security": (
        "allow.everyone.if.no.acl.found",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "delegation.token.expiry.check.interval.ms",
        "delegation.token.expiry.time.ms",
        "delegation.token.max.lifetime.ms",
        "delegation.token.secret.key",
        "early.start.listeners",
        "remote.log.metadata.manager.listener.name",
        "sasl.mechanism.controller.protocol",
        "super.users",
        *(key.name for key in (*security.TLS, *security.SASL)),
    ),
    "telemetry of clients": ("telemetry.max.bytes",),
    "a limit of the bytes of one read when transactions are loaded": (
        "transaction.state.log.load.buffer.size",
    ),
    "two-phase commit (KIP-939)": ("transaction.two.phase.commit.enable",),
}

WAITS_FOR: Mapping[str, str] = MappingProxyType(
    {key: feature for feature, keys in _WAITING.items() for key in keys}
)
"""For each of these keys, the feature that is missing."""
