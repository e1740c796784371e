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
_OWN_THREADS = (
    "Accepted for compatibility: the event loop and the worker threads of the process do this work."
)

TIERED = (
    boolean("remote.log.storage.system.enable", False, "Whether tiered storage is on.", HIGH),
    string(
        "remote.log.storage.manager.impl.prefix",
        "rsm.config.",
        "The prefix of keys that are passed to the storage manager.",
        check=not_empty(),
    ),
    string(
        "remote.log.metadata.manager.impl.prefix",
        "rlmm.config.",
        "The prefix of keys that are passed to the metadata manager.",
        check=not_empty(),
    ),
    string(
        "remote.log.storage.manager.class.name",
        None,
        "The storage manager. The default is Moldau's own; its URL is `rsm.config.url` or, if that "
        "is not set, `diskless.storage.url`.",
        check=not_empty(),
    ),
    string(
        "remote.log.storage.manager.class.path",
        None,
        "Accepted for compatibility; Java classes are not loaded.",
        has_effect=False,
    ),
    string(
        "remote.log.metadata.manager.class.name",
        _TOPIC_BASED,
        "The metadata manager. If the value is the name of Kafka's topic-based "
        "manager, the node uses Moldau's topic-based manager.",
        check=not_empty(),
    ),
    string(
        "remote.log.metadata.manager.class.path",
        None,
        "Accepted for compatibility; Java classes are not loaded.",
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
        "The maximum size of the metadata that a storage manager adds to a segment.",
        LOW,
        check=at_least(0),
    ),
    int32(
        "remote.log.metadata.topic.num.partitions",
        50,
        "Partitions of `__remote_log_metadata`. Do not change it later.",
        LOW,
        check=at_least(1),
    ),
    int16(
        "remote.log.metadata.topic.replication.factor",
        3,
        "Replicas of `__remote_log_metadata`. The topic is not created with fewer replicas. `moldau "
        "dev` uses 1.",
        LOW,
        check=at_least(1),
    ),
    int64(
        "remote.log.metadata.topic.retention.ms",
        -1,
        "How long `__remote_log_metadata` keeps records; -1 means forever.",
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
        "The interval between attempts while `__remote_log_metadata` cannot be used yet.",
        LOW,
        check=at_least(0),
    ),
    int64(
        "remote.log.metadata.initialization.retry.max.timeout.ms",
        120_000,
        "Accepted for compatibility: the initialization is repeated until it succeeds.",
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
        "The maximum number of segments that are copied at the same time.",
        check=at_least(1),
        update=CLUSTER_WIDE,
        limits=IN_STEPS,
    ),
    int32(
        "remote.log.manager.expiration.thread.pool.size",
        10,
        "The maximum number of partitions whose remote segments are removed at the same time.",
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
        "The interval between searches for segments to copy or to remove.",
        LOW,
        check=at_least(1),
    ),
    int64(
        "remote.log.manager.task.retry.backoff.ms",
        500,
        "The wait after a failure.",
        LOW,
        check=at_least(1),
    ),
    int64(
        "remote.log.manager.task.retry.backoff.max.ms",
        30_000,
        "The longest wait between repeated attempts.",
        LOW,
        check=at_least(1),
    ),
    double(
        "remote.log.manager.task.retry.jitter",
        0.2,
        "The random share of the wait between attempts.",
        LOW,
        check=between(0, 0.5),
    ),
    int32(
        "remote.log.reader.threads",
        10,
        "The maximum number of remote reads at the same time.",
        check=at_least(1),
        update=CLUSTER_WIDE,
        limits=IN_STEPS,
    ),
    int32(
        "remote.log.reader.max.pending.tasks",
        100,
        "The maximum number of remote reads that wait.",
        check=at_least(1),
    ),
    int64(
        "remote.log.manager.copy.max.bytes.per.second",
        LONG_MAX,
        "The maximum rate at which segments are copied.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "remote.log.manager.copy.quota.window.num",
        11,
        "The number of samples for the measurement of the rate of copies to the remote tier.",
        check=at_least(1),
    ),
    int32(
        "remote.log.manager.copy.quota.window.size.seconds",
        1,
        "The length of one sample for the measurement of the rate of copies to the remote tier.",
        check=at_least(1),
    ),
    int64(
        "remote.log.manager.fetch.max.bytes.per.second",
        LONG_MAX,
        "The maximum rate at which remote segments are read.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "remote.log.manager.fetch.quota.window.num",
        11,
        "Accepted for compatibility: remote reads are spread evenly, without samples.",
        check=at_least(1),
        has_effect=False,
    ),
    int32(
        "remote.log.manager.fetch.quota.window.size.seconds",
        1,
        "Accepted for compatibility: remote reads are spread evenly, without samples.",
        check=at_least(1),
        has_effect=False,
    ),
    int64(
        "remote.list.offsets.request.timeout.ms",
        30_000,
        "How long a search by timestamp in remote segments may take, if its request has no time-out.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
)

DISKLESS = (
    boolean("diskless.system.enable", False, "Whether diskless topics are enabled.", HIGH),
    boolean(
        "log.diskless.enable",
        False,
        "Whether a new topic is diskless if its request does not set `diskless.enable`. Compacted "
        "and internal topics are never diskless.",
        update=CLUSTER_WIDE,
    ),
    class_(
        "diskless.storage.class.name",
        None,
        "The class of the object storage of diskless topics. The default is Moldau's own, with "
        "`diskless.storage.url`.",
    ),
    string(
        "diskless.storage.class.path",
        None,
        "Accepted as in KIP-1163; Java classes are not loaded.",
        LOW,
        has_effect=False,
    ),
    class_(
        "diskless.batch.coordinator.class.name",
        None,
        "The dotted path of a Python class or function that makes the coordinator. The default is "
        "Moldau's own coordinator.",
        LOW,
    ),
    string(
        "diskless.batch.coordinator.class.path",
        None,
        "Accepted as in KIP-1163; Java classes are not loaded.",
        LOW,
        has_effect=False,
    ),
    int32(
        "diskless.append.commit.interval.ms",
        250,
        "How long a broker gathers records before it closes their object and uploads it.",
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "diskless.append.buffer.max.bytes",
        8 * MIB,
        "The size at which an object is closed and uploaded before "
        "`diskless.append.commit.interval.ms` is over.",
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int32(
        "diskless.metadata.topic.num.partitions",
        50,
        "The number of partitions of a new `__diskless_metadata`. It is the number of coordinators. "
        "A later change has no effect; CreatePartitions adds coordinators.",
        HIGH,
        check=at_least(1),
    ),
    int64(
        "diskless.coordinator.orphan.scan.interval.ms",
        60 * MINUTE_MS,
        "The interval between searches for objects that no coordinator refers to.",
        check=at_least(1),
    ),
    int64(
        "diskless.coordinator.orphan.scan.grace.period.ms",
        60 * MINUTE_MS,
        "How long an object is kept after its last use, before it is deleted.",
        check=at_least(1),
    ),
)

MOLDAU = (
    string(
        "diskless.storage.url",
        None,
        "The place of the objects: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///path` or `memory://`.",
        HIGH,
    ),
    int16(
        "diskless.metadata.topic.replication.factor",
        3,
        "Replicas of `__diskless_metadata`. The topic is not created with fewer replicas. `moldau "
        "dev` uses 1.",
        HIGH,
        check=at_least(1),
    ),
    int64(
        "diskless.coordinator.clock.skew.max.ms",
        60_000,
        "By how much the clocks of two brokers may differ. An object without references is deleted only when "
        "its age is greater than the sum of this time and the maximum age of a commit. If the difference "
        "between the clocks of a broker and the active controller is larger than this time, the broker does "
        "not search for such objects.",
        check=at_least(0),
    ),
    int64(
        "diskless.metadata.max.new.records.between.snapshots",
        20_000,
        "The number of new records in a partition of `__diskless_metadata` after which its "
        "coordinator writes a snapshot and shortens the log.",
        check=at_least(1),
    ),
    int64(
        "diskless.cache.max.bytes",
        4096 * MIB,
        "The maximum disk space of a broker for the local segments of diskless topics, which are a cache.",
        check=at_least(16 * MIB),
    ),
    int64(
        "diskless.cache.spilled.objects.max.bytes",
        1024 * MIB,
        "The maximum disk space of a broker for objects that it reads for its rack and that left the memory "
        "before all their parts were read. If a quarter of it was written and nothing was read from it, no "
        "more objects are written, until the broker cannot keep up with the writers. "
        "0 means that such objects are read from the store again.",
        check=at_least(0),
    ),
    int64(
        "diskless.cache.unread.ms",
        120_000,
        "If no client has read a diskless partition on a broker for this time, the broker does not read "
        "objects of other brokers for its local segments. It begins again at the next read. -1 means that "
        "local segments always get all records.",
        check=at_least(-1),
    ),
    int32(
        "diskless.append.early.close.puts.per.second",
        -1,
        "When its producers are idle, a broker closes an object early, up to this number of objects "
        "per second. 0 turns this off. -1 means 8, or 100 if the store charges nothing for requests "
        "(files, memory).",
        check=at_least(-1),
    ),
    boolean(
        "diskless.consolidation.enable",
        True,
        "Whether brokers with tiered storage build the segments of diskless topics. Set it to false "
        "if an external engine builds them. Existing segments are maintained and expire in both "
        "cases.",
        update=CLUSTER_WIDE,
    ),
    int32(
        "diskless.consolidation.interval.ms",
        30_000,
        "The interval at which a broker checks whether the WAL of a partition that it leads has "
        "enough bytes for a segment.",
        check=at_least(1),
    ),
    int32(
        "diskless.consolidation.segment.bytes",
        64 * MIB,
        "A segment is built when the batches of a partition in the WAL have at least this size. A smaller "
        "`segment.bytes` of a topic overrides it.",
        check=at_least(1),
        update=CLUSTER_WIDE,
    ),
    int64(
        "diskless.consolidation.max.age.ms",
        60 * MINUTE_MS,
        "The maximum time that a batch stays in the WAL. After this time, a segment is built "
        "from the batch and the batches after it, even if the segment is small. A smaller `segment.ms` of "
        "a topic overrides it.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    ),
    int64(
        "diskless.wal.backlog.max.bytes",
        100 * GIB,
        "The bytes in the WAL above which requests of producers are read more slowly, so that "
        "consolidation keeps up; -1 means never. It has an effect only with tiered storage.",
        check=at_least(-1),
        update=CLUSTER_WIDE,
    ),
    boolean(
        "backup.enable",
        True,
        "Whether the cluster's own logs are saved in the object store of diskless topics, so that a cluster"
        " can be restored from it. Objects are then deleted only after the records that freed them are"
        " saved.",
    ),
    int32(
        "backup.interval.ms",
        10_000,
        "How often the logs are saved. Nothing is stored when nothing has changed.",
        check=at_least(100),
    ),
    int64(
        "backup.retention.ms",
        60 * MINUTE_MS,
        "How long older saved states are kept. A restore of such a state does not bring back "
        "records that were deleted after the state was saved.",
        check=at_least(0),
    ),
    int32(
        "max.broker.partitions",
        100_000,
        "The maximum number of partitions that the controller places on one broker, including "
        "internal topics. More partitions are refused with POLICY_VIOLATION. A partition needs about "
        "10 KB of memory.",
        check=at_least(1),
    ),
    boolean(
        "broker.session.early.end.enable",
        True,
        "Whether the active controller fences a broker before `broker.session.timeout.ms` is over, if its"
        " heartbeats have stopped and all its listeners refuse connections, because its process has ended.",
    ),
    int64(
        "log.stray.delete.delay.ms",
        7 * DAY_MS,
        "How long the folder of a partition that is not in the metadata is kept, with the name "
        "`….ID-stray`. The time starts with the last start of the node; -1 means forever.",
        check=at_least(-1),
    ),
    string(
        "metrics.listener",
        None,
        ("The address at which `/metrics` and `/health` are served, as `host:port`."),
        LOW,
    ),
)
