"""Configs of the group coordinator, and the configs of single groups."""

from moldau.config.bounds import (
    Check,
    at_least,
    between,
    list_of,
    offset_reset,
    one_of,
    one_of_any_case,
    protocols,
)
from moldau.config.definition import ConfigKey
from moldau.config.keys.rows import HIGH, HOUR_MS, INT_MAX, MINUTE_MS, int32, list_, string

_POSITIVE = at_least(1)


def _bounds(
    kind: str,
    key: str,
    what: str,
    low: int,
    high: int,
    check_low: Check = _POSITIVE,
    check_high: Check = _POSITIVE,
) -> tuple[ConfigKey, ConfigKey]:
    return (
        int32(
            f"group.{kind}.min.{key}",
            low,
            f"The shortest {what} that a group config may set.",
            check=check_low,
        ),
        int32(
            f"group.{kind}.max.{key}",
            high,
            f"The longest {what} that a group config may set.",
            check=check_high,
        ),
    )


GROUPS = (
    int32("group.min.session.timeout.ms", 6000, "The shortest session time-out that a member may request."),
    int32(
        "group.max.session.timeout.ms",
        30 * MINUTE_MS,
        "The longest session time-out that a member may request.",
    ),
    int32(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long an empty group waits for more members before its first rebalance.",
    ),
    int32("group.max.size", INT_MAX, "The maximum number of members of a group.", check=at_least(1)),
    list_(
        "group.coordinator.rebalance.protocols",
        ("classic", "consumer", "streams"),
        "Accepted for compatibility: only the classic protocol is supported.",
        check=protocols("classic", "consumer", "share", "streams"),
        has_effect=False,
    ),
    int32(
        "group.coordinator.threads",
        4,
        "Accepted for compatibility: one event loop serves all groups.",
        HIGH,
        check=at_least(1),
        has_effect=False,
    ),
    int32(
        "group.coordinator.append.linger.ms",
        -1,
        "Accepted for compatibility: records that arrive together are written together, without a delay.",
        check=at_least(-1),
        has_effect=False,
    ),
    int32(
        "group.consumer.session.timeout.ms",
        45_000,
        "The session time-out of consumer groups.",
        check=at_least(1),
    ),
    int32(
        "group.consumer.min.session.timeout.ms",
        45_000,
        "The shortest session time-out that a group config may set.",
        check=at_least(1),
    ),
    int32(
        "group.consumer.max.session.timeout.ms",
        60_000,
        "The longest session time-out that a group config may set.",
        check=at_least(1),
    ),
    int32(
        "group.consumer.heartbeat.interval.ms",
        5000,
        "The heartbeat interval of members of consumer groups.",
        check=at_least(1),
    ),
    int32(
        "group.consumer.min.heartbeat.interval.ms",
        5000,
        "The shortest heartbeat interval that a group config may set.",
        check=at_least(1),
    ),
    int32(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "The longest heartbeat interval that a group config may set.",
        check=at_least(1),
    ),
    int32(
        "group.consumer.max.size",
        INT_MAX,
        "The maximum number of members of a consumer group.",
        check=at_least(1),
    ),
    list_(
        "group.consumer.assignors",
        ("uniform", "range"),
        "The assignors on the broker's side; the first is the default.",
        check=list_of("uniform", "range", may_be_empty=False, may_repeat=True),
    ),
    string(
        "group.consumer.migration.policy",
        "bidirectional",
        "The direction in which groups may change between the classic and the consumer protocol.",
        check=one_of_any_case("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
    int32(
        "group.consumer.regex.refresh.interval.ms",
        10 * MINUTE_MS,
        "The interval at which subscriptions by pattern are resolved again.",
        check=at_least(10_000),
    ),
    int32(
        "group.share.session.timeout.ms", 45_000, "The session time-out of share groups.", check=at_least(1)
    ),
    int32(
        "group.share.heartbeat.interval.ms",
        5000,
        "The heartbeat interval of members of share groups.",
        check=at_least(1),
    ),
    *_bounds("share", "session.timeout.ms", "session time-out", 45_000, 60_000),
    *_bounds("share", "heartbeat.interval.ms", "heartbeat interval", 5000, 15_000),
    *_bounds(
        "share",
        "record.lock.duration.ms",
        "lock time of a record",
        15_000,
        60_000,
        between(1000, 30_000),
        between(30_000, HOUR_MS),
    ),
    int32(
        "group.share.max.size", 200, "The maximum number of members of a share group.", check=between(1, 1000)
    ),
    int32(
        "group.share.delivery.count.limit",
        5,
        "The maximum number of deliveries of a record to a share group.",
        check=between(2, 10),
    ),
    int32(
        "group.share.record.lock.duration.ms",
        30_000,
        "How long a record is locked for a member of a share group.",
        check=between(1000, HOUR_MS),
    ),
    int32(
        "group.streams.session.timeout.ms",
        45_000,
        "The session time-out of streams groups.",
        check=at_least(1),
    ),
    *_bounds("streams", "session.timeout.ms", "session time-out", 45_000, 60_000),
    int32(
        "group.streams.heartbeat.interval.ms",
        5000,
        "The heartbeat interval of members of streams groups.",
        check=at_least(1),
    ),
    *_bounds("streams", "heartbeat.interval.ms", "heartbeat interval", 5000, 15_000),
    int32(
        "group.streams.max.size",
        INT_MAX,
        "The maximum number of members of a streams group.",
        check=at_least(1),
    ),
    int32(
        "group.streams.num.standby.replicas", 0, "Standby replicas of each streams task.", check=at_least(0)
    ),
    int32(
        "group.streams.max.standby.replicas",
        2,
        "The maximum number of standby replicas that a group config may set.",
        check=at_least(0),
    ),
    int32(
        "group.streams.initial.rebalance.delay.ms",
        3000,
        "How long an empty streams group waits for more members before its first rebalance.",
        check=at_least(0),
    ),
)

GROUP = (
    int32(
        "consumer.session.timeout.ms",
        45_000,
        "The session time-out of the consumer group.",
        check=at_least(1),
    ),
    int32(
        "consumer.heartbeat.interval.ms",
        5000,
        "The heartbeat interval of members of the consumer group.",
        check=at_least(1),
    ),
    int32("share.session.timeout.ms", 45_000, "The session time-out of the share group.", check=at_least(1)),
    int32(
        "share.heartbeat.interval.ms",
        5000,
        "The heartbeat interval of members of the share group.",
        check=at_least(1),
    ),
    int32(
        "share.record.lock.duration.ms",
        30_000,
        "How long a record is locked for a member.",
        check=at_least(1000),
    ),
    string(
        "share.auto.offset.reset",
        "latest",
        "The start of a share group without offsets: `earliest`, `latest`, or a duration before now "
        "as `by_duration:PnDTnHnMn.nS`.",
        check=offset_reset("share.auto.offset.reset"),
    ),
    string(
        "share.isolation.level",
        "read_uncommitted",
        "Whether a share group receives the records of open and aborted transactions.",
        check=one_of("read_committed", "read_uncommitted"),
    ),
    int32(
        "streams.session.timeout.ms", 45_000, "The session time-out of the streams group.", check=at_least(1)
    ),
    int32(
        "streams.heartbeat.interval.ms",
        5000,
        "The heartbeat interval of members of the streams group.",
        check=at_least(1),
    ),
    int32("streams.num.standby.replicas", 0, "Standby replicas of each task.", check=at_least(0)),
    int32(
        "streams.initial.rebalance.delay.ms",
        3000,
        "How long the empty group waits for more members before its first rebalance.",
        check=at_least(0),
    ),
)
"""The configs of one group (resource type GROUP)."""
