"""Fetching, replication, offsets, producers and transactions."""

from moldau.config.bounds import at_least, between
from moldau.config.keys.rows import (
    CLUSTER_WIDE,
    DAY_MS,
    HIGH,
    HOUR_MS,
    IN_STEPS,
    KIB,
    LOW,
    MIB,
    MINUTE_MS,
    boolean,
    int16,
    int32,
    int64,
    string,
)

_ONE_WAITING_ROOM = "Accepted for compatibility: a pending request is removed when it ends."

REPLICATION = (
    int32(
        "default.replication.factor",
        1,
        "The number of replicas of a new topic whose request does not set it.",
        check=at_least(1),
    ),
    int32(
        "min.insync.replicas",
        1,
        "The number of in-sync replicas that an append with acks=all requires.",
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that lacks records may become the leader if no other is left. Records are "
        "lost then.",
        HIGH,
        update=CLUSTER_WIDE,
    ),
    int64(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that has not caught up for this long is out of sync.",
        HIGH,
    ),
    int32(
        "replica.socket.timeout.ms", 30_000, "How long a follower waits for an answer of its leader.", HIGH
    ),
    int32(
        "replica.socket.receive.buffer.bytes",
        64 * KIB,
        "Accepted for compatibility; the system chooses the size of the buffer.",
        HIGH,
        has_effect=False,
    ),
    int32(
        "replica.fetch.max.bytes",
        MIB,
        "The maximum bytes of a partition in a fetch of a follower.",
        check=at_least(0),
    ),
    int32(
        "replica.fetch.response.max.bytes",
        10 * MIB,
        "The maximum bytes in a fetch of a follower.",
        check=at_least(0),
    ),
    int32(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader may wait for new records before it answers a follower.",
        HIGH,
    ),
    int32(
        "replica.fetch.min.bytes",
        1,
        ("The minimum bytes in an answer to a follower; the leader waits for them."),
        HIGH,
    ),
    int32("replica.fetch.backoff.ms", 1000, "How long a follower waits after an error.", check=at_least(0)),
    int32(
        "num.replica.fetchers",
        1,
        "The number of connections from a follower to one leader.",
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
        limits=IN_STEPS,
    ),
    int64(
        "replica.catch.up.max.bytes.per.second",
        320 * MIB,
        "Maximum bytes per second that this broker copies from leaders while it is far behind them. All its "
        "copies share this rate. At a lower rate, copies disturb producers less. A copy that does not come "
        "closer to the end of its leader's log at this rate is not limited.",
        check=at_least(1),
    ),
    int32(
        "num.replica.alter.log.dirs.threads",
        None,
        "Accepted for compatibility: the event loop does this work.",
        HIGH,
        has_effect=False,
    ),
    int64(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        "The interval at which high watermarks are stored.",
        HIGH,
    ),
    boolean(
        "follower.fetch.last.tiered.offset.enable",
        False,
        "Whether a new follower starts at the end of the tiered part of the log.",
    ),
    boolean(
        "auto.leader.rebalance.enable", True, "Whether the leadership returns to the preferred replica.", HIGH
    ),
    int64(
        "leader.imbalance.check.interval.seconds",
        300,
        "The interval between checks whether preferred replicas lead.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "leader.imbalance.per.broker.percentage",
        10,
        "Accepted for compatibility; every imbalance is corrected.",
        HIGH,
        has_effect=False,
    ),
    int64(
        "unclean.leader.election.interval.ms",
        5 * MINUTE_MS,
        "The interval between searches of the controller for partitions that need an unclean election.",
        check=at_least(1),
    ),
    string(
        "replica.selector.class",
        None,
        "The class that chooses a consumer's replica. Only the name of Kafka's "
        "`RackAwareReplicaSelector` is supported.",
    ),
    int64(
        "chunk.redirect.min.bytes",
        64 * MIB,
        "Consumers with `client.rack` read an inactive chunk of at least this size from the brokers that "
        "have the chunk (KIP-392). The leader passes on the records of smaller chunks, because some clients "
        "pause when they change the broker.",
        check=at_least(0),
    ),
    int32("fetch.purgatory.purge.interval.requests", 1000, _ONE_WAITING_ROOM, has_effect=False),
    int32("producer.purgatory.purge.interval.requests", 1000, _ONE_WAITING_ROOM, has_effect=False),
    int32("delete.records.purgatory.purge.interval.requests", 1, _ONE_WAITING_ROOM, has_effect=False),
)

FETCHING = (
    int32("fetch.max.bytes", 55 * MIB, "The maximum bytes in a fetch response.", check=at_least(1024)),
    int32(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "The maximum number of incremental fetch sessions.",
        check=at_least(0),
    ),
    int32(
        "max.request.partition.size.limit",
        2000,
        "The maximum number of partitions in a DescribeTopicPartitions response.",
        check=at_least(1),
    ),
    int32(
        "remote.fetch.max.wait.ms",
        500,
        "How long a fetch may wait for tiered data.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32("remote.max.partition.fetch.bytes", MIB, "Accepted for compatibility.", has_effect=False),
)

OFFSETS = (
    int32(
        "offset.metadata.max.bytes",
        4096,
        "The maximum size of the metadata text of a committed offset.",
        HIGH,
    ),
    int32(
        "offsets.topic.num.partitions",
        50,
        "Partitions of `__consumer_offsets`. Do not change it later.",
        HIGH,
        check=at_least(1),
    ),
    int16(
        "offsets.topic.replication.factor",
        3,
        "Replicas of `__consumer_offsets`. The topic is not created with fewer replicas. `moldau "
        "dev` uses 1.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "offsets.topic.segment.bytes",
        100 * MIB,
        "The size of a segment of `__consumer_offsets`.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "offsets.topic.compression.codec",
        0,
        "The codec of `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        HIGH,
        check=between(0, 4),
    ),
    int32(
        "offsets.load.buffer.size",
        5 * MIB,
        "Accepted for compatibility: files are loaded by memory maps.",
        HIGH,
        check=at_least(1),
        has_effect=False,
    ),
    int32(
        "offsets.retention.minutes",
        7 * 24 * 60,
        "How long the offsets of an empty group are kept.",
        HIGH,
        check=at_least(1),
    ),
    int64(
        "offsets.retention.check.interval.ms",
        10 * MINUTE_MS,
        "The interval between searches for expired offsets.",
        HIGH,
        check=at_least(1),
    ),
    int32("offsets.commit.timeout.ms", 5000, "How long a commit may take.", HIGH, check=at_least(1)),
)

TRANSACTIONS = (
    int32(
        "producer.id.expiration.ms",
        DAY_MS,
        "How long the state of an idle idempotent producer is kept.",
        LOW,
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "producer.id.expiration.check.interval.ms",
        10 * MINUTE_MS,
        "The interval between searches for expired producers.",
        LOW,
        check=at_least(1),
    ),
    boolean(
        "transaction.partition.verification.enable",
        True,
        "Whether a transactional write is checked against its transaction.",
        LOW,
        update=CLUSTER_WIDE,
    ),
    boolean(
        "transaction.two.phase.commit.enable",
        False,
        "Whether transactions without a time-out (two-phase commit) are allowed.",
        LOW,
    ),
    int32(
        "transaction.max.timeout.ms",
        15 * MINUTE_MS,
        "The longest time-out that a producer may request for its transactions.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "transactional.id.expiration.ms",
        7 * DAY_MS,
        "How long the state of an idle transactional id is kept.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of `__transaction_state`. Do not change it later.",
        HIGH,
        check=at_least(1),
    ),
    int16(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of `__transaction_state`. There are fewer replicas if there are fewer brokers "
        "(`moldau dev`).",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "transaction.state.log.min.isr",
        2,
        "`min.insync.replicas` of `__transaction_state`.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "transaction.state.log.segment.bytes",
        100 * MIB,
        "The size of a segment of `__transaction_state`.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "transaction.state.log.load.buffer.size",
        5 * MIB,
        "Bytes read at a time when transactions are loaded.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "The interval between searches for transactions whose time-out has passed.",
        LOW,
        check=at_least(1),
    ),
    int32(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        HOUR_MS,
        "The interval between searches for expired transactional ids.",
        LOW,
        check=at_least(1),
    ),
    int32(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "The wait before a failed check of a transaction is repeated.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "The longest time that a request to add partitions to a transaction waits, or is repeated by this "
        "broker, until the producer's last transaction has ended; at most 30 s.",
        HIGH,
        check=at_least(0),
    ),
)
