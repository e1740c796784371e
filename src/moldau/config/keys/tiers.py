"""Tiered storage (KIP-405), diskless topics (KIP-1163, KIP-1164) and Moldau's own keys."""

from moldau.config.bounds import at_least, between, not_empty
from moldau.config.keys.rows import (
    AT_LEAST_ONE,
    CLUSTER_WIDE,
    DAY_MS,
    GIB,
    HIGH,
    IN_STEPS,
    LONG_MAX,
    LOW,
    MIB,
    MINUTE_MS,
    boolean,
    class_,
    double,
    int16,
    int32,
    int64,
    string,
)

_TOPIC_BASED = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
_OWN_THREADS = "Accepted for Kafka's sake: the event loop and the worker threads of the process do this."

TIERED = (
    boolean("remote.log.storage.system.enable", False, "Tiered storage is on.", HIGH),
    string(
        "remote.log.storage.manager.impl.prefix",
        "rsm.config.",
        "Keys with this prefix are handed to the storage manager.",
        check=not_empty(),
    ),
    string(
        "remote.log.metadata.manager.impl.prefix",
        "rlmm.config.",
        "Keys with this prefix are handed to the metadata manager.",
        check=not_empty(),
    ),
    string(
        "remote.log.storage.manager.class.name",
        None,
        "The storage manager; by default Moldau's own, on `rsm.config.url` or else `diskless.storage.url`.",
        check=not_empty(),
    ),
    string(
        "remote.log.storage.manager.class.path",
        None,
        "Accepted for Kafka's sake; Java classes are not loaded.",
        has_effect=False,
    ),
    string(
        "remote.log.metadata.manager.class.name",
        _TOPIC_BASED,
        "The metadata manager; Kafka's name of the topic-based one stands for Moldau's.",
        check=not_empty(),
    ),
    string(
        "remote.log.metadata.manager.class.path",
        None,
        "Accepted for Kafka's sake; Java classes are not loaded.",
        has_effect=False,
    ),
    string(
        "remote.log.metadata.manager.listener.name",
        None,
        "The listener over which the metadata manager reaches its topic.",
        check=not_empty(),
    ),
    int32(
        "remote.log.metadata.custom.metadata.max.bytes",
        128,
        "The size of the metadata of a segment that a storage manager may add.",
        LOW,
        check=at_least(0),
    ),
    int32(
        "remote.log.metadata.topic.num.partitions",
        50,
        "Partitions of `__remote_log_metadata`; not to be changed later.",
        LOW,
        check=at_least(1),
    ),
    int16(
        "remote.log.metadata.topic.replication.factor",
        3,
        "Replicas of `__remote_log_metadata`, which is not created with fewer; 1 in `moldau dev`.",
        LOW,
        check=at_least(1),
    ),
    int64(
        "remote.log.metadata.topic.retention.ms",
        -1,
        "How long `__remote_log_metadata` keeps records; -1 for ever.",
        LOW,
    ),
    int64(
        "remote.log.metadata.consume.wait.ms",
        120_000,
        "How long the writer of an event waits until this broker has read it back.",
        LOW,
        check=at_least(0),
    ),
    int64(
        "remote.log.metadata.initialization.retry.interval.ms",
        100,
        "After what time it is tried again when `__remote_log_metadata` cannot be used yet.",
        LOW,
        check=at_least(0),
    ),
    int64(
        "remote.log.metadata.initialization.retry.max.timeout.ms",
        120_000,
        "Accepted for Kafka's sake: it is tried until it succeeds.",
        LOW,
        check=at_least(0),
        has_effect=False,
    ),
    int64(
        "remote.log.index.file.cache.total.size.bytes",
        GIB,
        "Disk space for indexes of remote segments.",
        LOW,
        check=at_least(1),
        update=CLUSTER_WIDE,
        limits=AT_LEAST_ONE,
    ),
    int32(
        "remote.log.manager.thread.pool.size",
        2,
        _OWN_THREADS,
        check=at_least(1),
        has_effect=False,
    ),
    int32(
        "remote.log.manager.copier.thread.pool.size",
        10,
        "Segments that are copied at the same time.",
        check=at_least(1),
        update=CLUSTER_WIDE,
        limits=IN_STEPS,
    ),
    int32(
        "remote.log.manager.expiration.thread.pool.size",
        10,
        "Partitions whose remote segments are removed at the same time.",
        check=at_least(1),
        update=CLUSTER_WIDE,
        limits=IN_STEPS,
    ),
    int32(
        "remote.log.manager.follower.thread.pool.size",
        2,
        _OWN_THREADS,
        check=at_least(1),
        update=CLUSTER_WIDE,
        has_effect=False,
        limits=IN_STEPS,
    ),
    int64(
        "remote.log.manager.task.interval.ms",
        30_000,
        "How often it is looked what to copy and to remove.",
        LOW,
        check=at_least(1),
    ),
    int64(
        "remote.log.manager.task.retry.backoff.ms",
        500,
        "How long to wait after a failure.",
        LOW,
        check=at_least(1),
    ),
    int64(
        "remote.log.manager.task.retry.backoff.max.ms",
        30_000,
        "The longest such wait.",
        LOW,
        check=at_least(1),
    ),
    double(
        "remote.log.manager.task.retry.jitter",
        0.2,
        "The random share of such a wait.",
        LOW,
        check=between(0, 0.5),
    ),
    int32(
        "remote.log.reader.threads",
        10,
        "Remote reads at the same time.",
        check=at_least(1),
        update=CLUSTER_WIDE,
        limits=IN_STEPS,
    ),
    int32("remote.log.reader.max.pending.tasks", 100, "Remote reads that may wait.", check=at_least(1)),
    int64(
        "remote.log.manager.copy.max.bytes.per.second",
        LONG_MAX,
        "The rate at which segments are copied.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "remote.log.manager.copy.quota.window.num",
        11,
        "Samples that this rate is measured over.",
        check=at_least(1),
    ),
    int32(
        "remote.log.manager.copy.quota.window.size.seconds", 1, "Length of such a sample.", check=at_least(1)
    ),
    int64(
        "remote.log.manager.fetch.max.bytes.per.second",
        LONG_MAX,
        "The rate at which remote segments are read.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "remote.log.manager.fetch.quota.window.num",
        11,
        "Samples that this rate is measured over.",
        check=at_least(1),
    ),
    int32(
        "remote.log.manager.fetch.quota.window.size.seconds", 1, "Length of such a sample.", check=at_least(1)
    ),
    int64(
        "remote.list.offsets.request.timeout.ms",
        30_000,
        "How long a search by timestamp in remote segments may take.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
)

DISKLESS = (
    boolean("diskless.system.enable", False, "Diskless topics are on.", HIGH),
    boolean(
        "log.diskless.enable",
        False,
        "Whether a new topic that does not say is diskless; compacted and internal topics never are.",
        update=CLUSTER_WIDE,
    ),
    class_(
        "diskless.storage.class.name",
        None,
        "The object storage of diskless topics; by default Moldau's own, on `diskless.storage.url`.",
    ),
    string(
        "diskless.storage.class.path",
        None,
        "Accepted for the KIP's sake; Java classes are not loaded.",
        LOW,
        has_effect=False,
    ),
    class_(
        "diskless.batch.coordinator.class.name",
        None,
        "A Python class or function, by dotted path, that makes the coordinator; by default Moldau's own.",
        LOW,
    ),
    string(
        "diskless.batch.coordinator.class.path",
        None,
        "Accepted for the KIP's sake; Java classes are not loaded.",
        LOW,
        has_effect=False,
    ),
    int32(
        "diskless.append.commit.interval.ms",
        250,
        "How long records are gathered before their object is closed and uploaded.",
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "diskless.append.buffer.max.bytes",
        8 * MIB,
        "The size at which an object is closed and uploaded before that time.",
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "diskless.metadata.topic.num.partitions",
        50,
        "Partitions that `__diskless_metadata` is created with, which is the number of coordinators; a later"
        " change has no effect.",
        HIGH,
        check=at_least(1),
    ),
    int64(
        "diskless.coordinator.orphan.scan.interval.ms",
        60 * MINUTE_MS,
        "How often objects that nobody refers to are looked for.",
        check=at_least(1),
    ),
    int64(
        "diskless.coordinator.orphan.scan.grace.period.ms",
        60 * MINUTE_MS,
        "How long an object stays after it may be deleted.",
        check=at_least(1),
    ),
)

MOLDAU = (
    string(
        "diskless.storage.url",
        None,
        "Where objects live: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///path` or `memory://`.",
        HIGH,
    ),
    int16(
        "diskless.metadata.topic.replication.factor",
        3,
        "Replicas of `__diskless_metadata`, which is not created with fewer; 1 in `moldau dev`.",
        HIGH,
        check=at_least(1),
    ),
    int64(
        "diskless.metadata.max.new.records.between.snapshots",
        20_000,
        "After how many new records in a partition of `__diskless_metadata` its coordinator takes a snapshot"
        " and shortens the log.",
        check=at_least(1),
    ),
    int64(
        "diskless.cache.max.bytes",
        4096 * MIB,
        "How much disk a broker gives to the local segments of diskless topics, which are a cache.",
        check=at_least(16 * MIB),
    ),
    int32(
        "diskless.append.early.close.puts.per.second",
        -1,
        "Objects a second up to which a broker closes one before its time when producers have fallen quiet;"
        " 0 turns that off, and -1 is 8, or 100 where requests cost nothing (files, memory).",
        check=at_least(-1),
    ),
    boolean(
        "diskless.consolidation.enable",
        True,
        "Whether brokers with tiered storage build the segments of diskless topics themselves; false where an"
        " outside engine does. What was recorded is kept in order, and expires, all the same.",
        update=CLUSTER_WIDE,
    ),
    int32(
        "diskless.consolidation.interval.ms",
        30_000,
        "How often a broker looks whether the WAL of a partition that it leads makes a segment.",
        check=at_least(1),
    ),
    int32(
        "diskless.consolidation.segment.bytes",
        64 * MIB,
        "The size at which batches in the WAL make a segment; a topic's smaller `segment.bytes` counts.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int64(
        "diskless.consolidation.max.age.ms",
        60 * MINUTE_MS,
        "How long a batch stays in the WAL before it makes a segment with those behind it, however few they"
        " are; a topic's smaller `segment.ms` counts.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    ),
    int64(
        "diskless.wal.backlog.max.bytes",
        100 * GIB,
        "From how many bytes in the WAL on producers are read more slowly, so that consolidation keeps up; -1"
        " for never. It counts only where there is tiered storage for them to go to.",
        check=at_least(-1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "max.broker.partitions",
        100_000,
        "How many partitions the controller places on one broker, internal topics included; more are refused"
        " with POLICY_VIOLATION. A partition takes about 10 KB of memory.",
        check=at_least(1),
    ),
    int64(
        "log.stray.delete.delay.ms",
        7 * DAY_MS,
        "How long the folder of a partition that is not in the metadata is kept, as `….ID-stray`, counted"
        " from the last start; -1 for ever.",
        check=at_least(-1),
    ),
    string("metrics.listener", None, "Where `/metrics` and `/health` are served, as `host:port`.", LOW),
)
