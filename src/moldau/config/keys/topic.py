"""The table of the configs that a topic can have."""

from moldau.config.bounds import (
    at_least,
    between,
    gzip_level,
    list_of,
    off_or_at_least,
    one_of,
    throttled_replicas,
)
from moldau.config.definition import Synonym
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

FOREVER = -1

TOPIC = (
    int64(
        "chunk.roll.bytes",
        -1,
        "The size at which the active chunk of a partition ends, and the next chunk begins on the brokers "
        "with the fewest bytes (KIP-1114). -1 means no limit.",
        check=off_or_at_least(MIB),
    ),
    int64(
        "chunk.roll.ms",
        -1,
        "The age at which the active chunk of a partition ends, and the next chunk begins on the brokers "
        "with the fewest bytes (KIP-1114). -1 means no limit.",
        check=off_or_at_least(1_000),
    ),
    list_(
        "cleanup.policy",
        ("delete",),
        "The treatment of old records: `delete`, `compact`, or both.",
        check=list_of("compact", "delete", may_repeat=True),
        synonyms=(Synonym("log.cleanup.policy"),),
    ),
    string(
        "compression.type",
        "producer",
        "The codec of stored batches. Batches with another codec are recompressed. `producer` keeps "
        "the codec of the producer.",
        check=one_of(*COMPRESSION_TYPES),
        synonyms=(Synonym("compression.type"),),
    ),
    int32(
        "compression.gzip.level",
        -1,
        "The compression level of gzip, if the broker compresses.",
        check=gzip_level(),
        synonyms=(Synonym("compression.gzip.level"),),
    ),
    int32(
        "compression.lz4.level",
        9,
        "The compression level of lz4, if the broker compresses.",
        check=between(1, 17),
        synonyms=(Synonym("compression.lz4.level"),),
    ),
    int32(
        "compression.zstd.level",
        3,
        "The compression level of zstd, if the broker compresses.",
        check=between(-131072, 22),
        synonyms=(Synonym("compression.zstd.level"),),
    ),
    int64(
        "delete.retention.ms",
        DAY_MS,
        "How long tombstones and transaction markers are kept in a compacted topic.",
        check=at_least(0),
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    ),
    boolean(
        "diskless.enable",
        False,
        "Whether the records of the topic are stored in object storage. It can be set only when the "
        "topic is created (KIP-1163).",
        synonyms=(Synonym("log.diskless.enable"),),
        fixed_at_creation=True,
    ),
    int64(
        "file.delete.delay.ms",
        MINUTE_MS,
        "How long the files of a deleted segment stay on disk.",
        check=at_least(0),
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    int64(
        "flush.messages",
        LONG_MAX,
        "The number of records after which the log is flushed to disk.",
        check=at_least(1),
        synonyms=(Synonym("log.flush.interval.messages"),),
    ),
    int64(
        "flush.ms",
        LONG_MAX,
        "The time in milliseconds after which the log is flushed to disk.",
        check=at_least(0),
        synonyms=(
            Synonym("log.flush.interval.ms"),
            Synonym("log.flush.scheduler.interval.ms"),
        ),
    ),
    list_(
        "follower.replication.throttled.replicas",
        (),
        "Replicas that are throttled when they fetch from their leaders: `partition:broker,…` or `*`.",
        check=throttled_replicas(),
    ),
    int32(
        "index.interval.bytes",
        4096,
        "Bytes of records between two index entries.",
        check=at_least(0),
        synonyms=(Synonym("log.index.interval.bytes"),),
    ),
    list_(
        "leader.replication.throttled.replicas",
        (),
        "Replicas that are throttled when they serve followers: `partition:broker,…` or `*`.",
        check=throttled_replicas(),
    ),
    int64(
        "local.retention.bytes",
        -2,
        "How much of a tiered partition is kept on the broker's disk; -2 means `retention.bytes`.",
        check=at_least(-2),
        synonyms=(Synonym("log.local.retention.bytes"),),
    ),
    int64(
        "local.retention.ms",
        -2,
        "How long tiered records are kept on the broker's disk; -2 means `retention.ms`.",
        check=at_least(-2),
        synonyms=(Synonym("log.local.retention.ms"),),
    ),
    int64(
        "max.compaction.lag.ms",
        LONG_MAX,
        "The maximum time before a record is compacted.",
        check=at_least(1),
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    int32(
        "max.message.bytes",
        MIB + 12,
        "The maximum size of a batch of records, after compression.",
        check=at_least(0),
        synonyms=(Synonym("message.max.bytes"),),
    ),
    int64(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        "How far the timestamp of a record may be in the future.",
        check=at_least(0),
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    ),
    int64(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far the timestamp of a record may be in the past.",
        check=at_least(0),
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    ),
    string(
        "message.timestamp.type",
        "CreateTime",
        "The clock of the records' timestamps: the producer's (`CreateTime`) or the broker's "
        "(`LogAppendTime`).",
        check=one_of("CreateTime", "LogAppendTime"),
        synonyms=(Synonym("log.message.timestamp.type"),),
    ),
    double(
        "min.cleanable.dirty.ratio",
        0.5,
        "A log is compacted when at least this share of its bytes is not compacted yet.",
        check=between(0, 1),
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    int64(
        "min.compaction.lag.ms",
        0,
        "The minimum time before a record may be compacted.",
        check=at_least(0),
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    int32(
        "min.insync.replicas",
        1,
        "The number of in-sync replicas that an append with acks=all requires.",
        check=at_least(1),
        synonyms=(Synonym("min.insync.replicas"),),
    ),
    boolean(
        "preallocate",
        False,
        "Accepted for compatibility: files grow when they are written.",
        has_effect=False,
        synonyms=(Synonym("log.preallocate"),),
    ),
    boolean(
        "remote.log.copy.disable",
        False,
        "Whether copies to the remote tier stop. Records that are already there stay readable.",
    ),
    boolean(
        "remote.log.delete.on.disable",
        False,
        "Whether the remote data of the topic is deleted when tiered storage is switched off for it.",
    ),
    boolean(
        "remote.storage.enable",
        False,
        "Whether the closed segments of the topic are copied to the remote tier (KIP-405).",
    ),
    int64(
        "retention.bytes",
        -1,
        "The size of a partition above which its oldest segments are deleted; -1 means no limit.",
        synonyms=(Synonym("log.retention.bytes"),),
    ),
    int64(
        "retention.ms",
        7 * DAY_MS,
        "How long records are kept; -1 means forever.",
        check=at_least(-1),
        synonyms=(
            Synonym("log.retention.ms", low=FOREVER),
            Synonym("log.retention.minutes", MINUTE_MS, low=FOREVER),
            Synonym("log.retention.hours", HOUR_MS, low=FOREVER),
        ),
    ),
    int32(
        "segment.bytes",
        GIB,
        "The size of a segment file.",
        check=at_least(MIB),
        synonyms=(Synonym("log.segment.bytes"),),
    ),
    int32(
        "segment.index.bytes",
        10 * MIB,
        "The maximum size of an offset index.",
        check=at_least(4),
        synonyms=(Synonym("log.index.size.max.bytes"),),
    ),
    int64(
        "segment.jitter.ms",
        0,
        "The maximum random reduction of the age at which a segment is closed.",
        check=at_least(0),
        synonyms=(
            Synonym("log.roll.jitter.ms"),
            Synonym("log.roll.jitter.hours", HOUR_MS),
        ),
    ),
    int64(
        "segment.ms",
        7 * DAY_MS,
        "The age at which a segment is closed.",
        check=at_least(1),
        synonyms=(
            Synonym("log.roll.ms"),
            Synonym("log.roll.hours", HOUR_MS),
        ),
    ),
    boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that lacks records may become the leader if no other is left. Records are "
        "lost then.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
)
