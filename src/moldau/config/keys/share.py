"""Share groups (KIP-932): configs of Kafka's share coordinator and of share fetches."""

from moldau.config.bounds import at_least, between, list_of
from moldau.config.keys.rows import HIGH, MIB, int16, int32, list_

SHARE = (
    list_(
        "group.share.assignors",
        ("simple",),
        "The assignors of share groups on the broker's side.",
        check=list_of("simple", may_be_empty=False, may_repeat=True),
    ),
    int32(
        "group.share.partition.max.record.locks",
        2000,
        "The maximum number of records of a partition that are locked for members of a share group.",
        check=between(100, 10_000),
    ),
    int32("group.share.max.share.sessions", 2000, "The maximum number of share sessions.", check=at_least(1)),
    int32("share.fetch.purgatory.purge.interval.requests", 1000, "Waiting share fetches between two purges."),
    int32(
        "share.coordinator.state.topic.num.partitions",
        50,
        "Partitions of `__share_group_state`. Do not change it later.",
        HIGH,
        check=at_least(1),
    ),
    int16(
        "share.coordinator.state.topic.replication.factor",
        3,
        "Replicas of `__share_group_state`.",
        HIGH,
        check=at_least(1),
    ),
    int16(
        "share.coordinator.state.topic.min.isr",
        2,
        "`min.insync.replicas` of `__share_group_state`.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "share.coordinator.state.topic.segment.bytes",
        100 * MIB,
        "The size of a segment of `__share_group_state`.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "share.coordinator.state.topic.compression.codec",
        0,
        "The codec of `__share_group_state`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        HIGH,
        check=between(0, 4),
    ),
    int32("share.coordinator.threads", 1, "Threads of the share coordinator.", check=at_least(1)),
    int32(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        "The number of updates of a share group's state between two snapshots.",
        check=between(0, 500),
    ),
    int32(
        "share.coordinator.load.buffer.size",
        5 * MIB,
        "Bytes read at a time when the state of share groups is loaded.",
        check=at_least(1),
    ),
    int32(
        "share.coordinator.append.linger.ms",
        -1,
        "How long the share coordinator gathers records before it writes them; -1 adapts to the load.",
        check=at_least(-1),
    ),
    int32("share.coordinator.write.timeout.ms", 5000, "How long a write may take.", check=at_least(1)),
)
