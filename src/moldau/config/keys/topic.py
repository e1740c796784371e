"""The configs of a topic."""

from moldau.config.bounds import at_least, between, gzip_level, list_of, one_of, throttled_replicas
from moldau.config.keys.log import COMPRESSION_TYPES
from moldau.config.keys.rows import (
    DAY_MS,
    GIB,
    HOUR_MS,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    boolean,
    double,
    int32,
    int64,
    list_,
    string,
)

TOPIC = (
    list_(
        "cleanup.policy",
        ("delete",),
        "What becomes of old records: `delete`, `compact`, or both.",
        check=list_of("compact", "delete", may_repeat=True),
    ),
    string(
        "compression.type",
        "producer",
        "The codec of stored batches; those of another one are recompressed. `producer`: as they come.",
        check=one_of(*COMPRESSION_TYPES),
    ),
    int32(
        "compression.gzip.level", -1, "The level of gzip, where the broker compresses.", check=gzip_level()
    ),
    int32("compression.lz4.level", 9, "The level of lz4, where the broker compresses.", check=between(1, 17)),
    int32(
        "compression.zstd.level",
        3,
        "The level of zstd, where the broker compresses.",
        check=between(-131072, 22),
    ),
    int64(
        "delete.retention.ms",
        DAY_MS,
        "How long tombstones and transaction markers are kept in a compacted topic.",
        check=at_least(0),
    ),
    boolean(
        "diskless.enable",
        False,
        "The topic's records live in object storage. Only at its creation (KIP-1163).",
    ),
    int64(
        "file.delete.delay.ms", MINUTE_MS, "How long the files of a deleted segment stay.", check=at_least(0)
    ),
    int64("flush.messages", LONG_MAX, "Records after which the log is flushed to disk.", check=at_least(1)),
    int64("flush.ms", LONG_MAX, "Milliseconds after which the log is flushed to disk.", check=at_least(0)),
    list_(
        "follower.replication.throttled.replicas",
        (),
        "Replicas whose following is throttled: `partition:broker,…` or `*`.",
        check=throttled_replicas(),
    ),
    int32("index.interval.bytes", 4096, "Bytes of records between two index entries.", check=at_least(0)),
    list_(
        "leader.replication.throttled.replicas",
        (),
        "Replicas that are throttled when they serve followers: `partition:broker,…` or `*`.",
        check=throttled_replicas(),
    ),
    int64(
        "local.retention.bytes",
        -2,
        "How much of a tiered partition is kept on the broker's disk; -2 as `retention.bytes`.",
        check=at_least(-2),
    ),
    int64(
        "local.retention.ms",
        -2,
        "How long tiered records are kept on the broker's disk; -2 as `retention.ms`.",
        check=at_least(-2),
    ),
    int64(
        "max.compaction.lag.ms", LONG_MAX, "How long a record stays uncompacted at most.", check=at_least(1)
    ),
    int32("max.message.bytes", MIB + 12, "The largest batch of records, compressed.", check=at_least(0)),
    int64(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        "How far a record's timestamp may lie in the future.",
        check=at_least(0),
    ),
    int64(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's timestamp may lie in the past.",
        check=at_least(0),
    ),
    string(
        "message.timestamp.type",
        "CreateTime",
        "Whose clock stamps records: the producer's (`CreateTime`) or the broker's (`LogAppendTime`).",
        check=one_of("CreateTime", "LogAppendTime"),
    ),
    double(
        "min.cleanable.dirty.ratio",
        0.5,
        "The share of dirty bytes from which a log is compacted.",
        check=between(0, 1),
    ),
    int64("min.compaction.lag.ms", 0, "How long a record stays uncompacted at least.", check=at_least(0)),
    int32(
        "min.insync.replicas",
        1,
        "With acks=all, how many replicas must have a record before it counts.",
        check=at_least(1),
    ),
    boolean(
        "preallocate", False, "Accepted for Kafka's sake: files grow as they are written.", has_effect=False
    ),
    boolean(
        "remote.log.copy.disable",
        False,
        "Nothing more is copied to the remote tier; what is there stays readable.",
    ),
    boolean(
        "remote.log.delete.on.disable",
        False,
        "When tiered storage is switched off for the topic, its remote data goes.",
    ),
    boolean(
        "remote.storage.enable", False, "The topic's closed segments are copied to the remote tier (KIP-405)."
    ),
    int64("retention.bytes", -1, "The size that a partition is kept under; -1 is no bound."),
    int64("retention.ms", 7 * DAY_MS, "How long records are kept; -1 for ever.", check=at_least(-1)),
    int32("segment.bytes", GIB, "The size of a segment file.", check=at_least(MIB)),
    int32("segment.index.bytes", 10 * MIB, "The size of an offset index.", check=at_least(4)),
    int64(
        "segment.jitter.ms", 0, "By how much the age of a segment is shortened at random.", check=at_least(0)
    ),
    int64("segment.ms", 7 * DAY_MS, "The age at which a segment is closed.", check=at_least(1)),
    boolean(
        "unclean.leader.election.enable",
        False,
        "A replica that lacks records may lead when no other is left; records are lost then.",
    ),
)
