"""Keys for a node's identity, its listeners, and its metadata quorum."""

from moldau.config.bounds import at_least, list_of, list_of_any, not_empty, one_of
from moldau.config.keys.rows import (
    AT_LEAST_ONE,
    CLUSTER_WIDE,
    DAY_MS,
    GIB,
    HIGH,
    HOUR_MS,
    IN_STEPS,
    INT_MAX,
    KIB,
    LOW,
    MIB,
    MINUTE_MS,
    PER_BROKER,
    SAME_FOR_LISTENERS,
    boolean,
    int32,
    int64,
    list_,
    string,
)

_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
_NO_THREADS = "Accepted for compatibility: one event loop does this work."

NODE = (
    list_(
        "process.roles",
        (),
        "What this process is: `broker`, `controller`, or both.",
        HIGH,
        check=list_of("broker", "controller"),
    ),
    int32("node.id", -1, "The id of this node, unique in the cluster. Required.", HIGH),
    int32("broker.id", -1, "An older name of `node.id`; when both are set they must agree.", HIGH),
    boolean(
        "broker.id.generation.enable",
        True,
        "Accepted for compatibility; every node has a configured id.",
        has_effect=False,
    ),
    int32(
        "reserved.broker.max.id",
        1000,
        "Accepted for compatibility; every node has a configured id.",
        check=at_least(0),
        has_effect=False,
    ),
    string(
        "broker.rack",
        None,
        "The rack or zone of this broker. It is used to place replicas, and to let consumers read "
        "from a near replica.",
    ),
    int32(
        "initial.broker.registration.timeout.ms",
        MINUTE_MS,
        "How long a starting broker tries to register before it gives up.",
    ),
    int32("broker.heartbeat.interval.ms", 2000, "The interval of a broker's heartbeats to the controller."),
    int32(
        "broker.session.timeout.ms",
        9000,
        "The controller fences a broker that has sent no heartbeat for this time.",
    ),
    int64(
        "server.max.startup.time.ms",
        2**63 - 1,
        "A node that has not started after this time stops.",
        check=at_least(0),
    ),
    boolean(
        "controlled.shutdown.enable",
        True,
        ("Whether a stopping broker first moves the leadership of its partitions to other brokers."),
    ),
    int32(
        "controlled.shutdown.max.retries",
        3,
        "Accepted for compatibility; the controller decides when a broker may stop.",
        has_effect=False,
    ),
    int64(
        "controlled.shutdown.retry.backoff.ms",
        5000,
        "Accepted for compatibility; the controller decides when a broker may stop.",
        has_effect=False,
    ),
    int32(
        "background.threads",
        10,
        _NO_THREADS,
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
        has_effect=False,
        limits=IN_STEPS,
    ),
    int32(
        "num.io.threads",
        8,
        _NO_THREADS,
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
        has_effect=False,
        limits=IN_STEPS,
    ),
    int32(
        "num.network.threads",
        3,
        _NO_THREADS,
        HIGH,
        check=at_least(1),
        update=CLUSTER_WIDE,
        has_effect=False,
        limits=IN_STEPS | SAME_FOR_LISTENERS,
    ),
    int32("request.timeout.ms", 30_000, "How long this node waits for the answer of another node.", HIGH),
    int64(
        "socket.connection.setup.timeout.ms",
        10_000,
        "How long this node waits for a connection to another node.",
    ),
    int64(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        ("The longest wait for a connection after several failures in a row."),
    ),
    boolean(
        "unstable.api.versions.enable",
        False,
        ("Whether versions of APIs that are not final yet are offered."),
        HIGH,
    ),
    boolean(
        "unstable.feature.versions.enable",
        False,
        ("Whether feature levels that are not final yet are accepted."),
        HIGH,
    ),
)

LISTENERS = (
    list_(
        "listeners",
        ("PLAINTEXT://:9092",),
        "The addresses to listen on: a list of `NAME://host:port`. An empty host means every "
        "interface. Port 0 means a free port.",
        HIGH,
        check=list_of_any(may_be_empty=False),
        update=PER_BROKER,
    ),
    list_(
        "advertised.listeners",
        None,
        "The addresses that are sent to clients, if they differ from `listeners`.",
        HIGH,
        check=list_of_any(may_be_empty=False),
    ),
    string(
        "listener.security.protocol.map",
        _PROTOCOL_MAP,
        "The security protocol of each listener name, as `NAME:PROTOCOL,…`.",
        LOW,
        update=PER_BROKER,
    ),
    list_(
        "controller.listener.names",
        None,
        "The listeners that controllers use; required with `process.roles`.",
        HIGH,
        check=list_of_any(may_be_empty=False),
    ),
    string(
        "inter.broker.listener.name",
        None,
        "The listener for requests between brokers.",
        check=not_empty(),
    ),
    string(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "The security protocol between brokers, if `inter.broker.listener.name` is not set.",
        check=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    list_(
        "early.start.listeners",
        None,
        "Listeners that accept connections before the node is ready; by default the controllers'.",
        HIGH,
        check=list_of_any(),
    ),
    int32(
        "socket.send.buffer.bytes",
        100 * KIB,
        "`SO_SNDBUF` of client connections. If the key is not set, the system chooses the size.",
        HIGH,
    ),
    int32(
        "socket.receive.buffer.bytes",
        100 * KIB,
        "`SO_RCVBUF` of client connections. If the key is not set, the system chooses the size.",
        HIGH,
    ),
    int32(
        "socket.request.max.bytes",
        100 * MIB,
        "The maximum size of a request. A larger request closes its connection.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "socket.listen.backlog.size",
        50,
        "The maximum number of connections that wait to be accepted.",
        check=at_least(1),
    ),
    int32(
        "max.connections",
        INT_MAX,
        "The maximum number of connections at the same time.",
        check=at_least(0),
        update=CLUSTER_WIDE,
        limits=AT_LEAST_ONE | SAME_FOR_LISTENERS,
    ),
    int32(
        "max.connections.per.ip",
        INT_MAX,
        "The maximum number of connections at the same time from one address.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    ),
    string(
        "max.connections.per.ip.overrides",
        "",
        "Other limits for single addresses: `host:count,…`.",
        update=CLUSTER_WIDE,
    ),
    int32(
        "max.connection.creation.rate",
        INT_MAX,
        "Accepted for compatibility. The number of connections is limited, but not their rate.",
        check=at_least(0),
        update=CLUSTER_WIDE,
        has_effect=False,
        limits=AT_LEAST_ONE | SAME_FOR_LISTENERS,
    ),
    int64(
        "connections.max.idle.ms", 10 * MINUTE_MS, "A connection without requests for this time is closed."
    ),
    int32(
        "connection.failed.authentication.delay.ms",
        100,
        "The delay of the answer to a refused log-in.",
        LOW,
        check=at_least(0),
    ),
    int64(
        "connections.max.reauth.ms", 0, "If positive, SASL clients must authenticate again within this time."
    ),
    int32(
        "queued.max.requests",
        500,
        "Accepted for compatibility: there is no queue. The bytes of requests, and the requests of a "
        "connection, are limited.",
        HIGH,
        check=at_least(1),
        has_effect=False,
    ),
    int64(
        "queued.max.request.bytes",
        -1,
        "The maximum bytes of requests in memory, of all connections. Above it no more requests are "
        "read; -1 means no limit.",
    ),
)

QUORUM = (
    list_("controller.quorum.voters", (), "The controllers of a static quorum: `id@host:port,…`.", HIGH),
    list_(
        "controller.quorum.bootstrap.servers",
        (),
        "Addresses of controllers of a dynamic quorum: `host:port,…`.",
        HIGH,
    ),
    boolean(
        "controller.quorum.auto.join.enable",
        False,
        ("Whether a new controller adds itself to the voters."),
        LOW,
    ),
    int32(
        "controller.quorum.election.timeout.ms",
        1000,
        "How long to wait for votes before a new election.",
        HIGH,
        check=at_least(0),
    ),
    int32(
        "controller.quorum.fetch.timeout.ms",
        2000,
        "A voter that could not fetch from the leader for this time starts an election. A leader "
        "resigns if it gets no fetches from a majority of the voters for 1.5 times this time.",
        HIGH,
        check=at_least(0),
    ),
    int32(
        "controller.quorum.election.backoff.max.ms",
        1000,
        "The longest wait between elections without a winner. The actual wait is a random part of this time.",
        HIGH,
        check=at_least(0),
    ),
    int32(
        "controller.quorum.append.linger.ms",
        25,
        "How long the leader gathers records before it writes them. If the key is not set, the "
        "leader writes as soon as the disk is free.",
        check=at_least(0),
    ),
    int32(
        "controller.quorum.request.timeout.ms",
        2000,
        "How long a controller waits for the answer of another controller.",
        check=at_least(0),
    ),
    int32(
        "controller.quorum.retry.backoff.ms",
        20,
        "How long to wait before a failed request of the quorum is repeated.",
        LOW,
        check=at_least(0),
    ),
    int32(
        "controller.quorum.retry.backoff.max.ms",
        1000,
        "The longest wait between repeated attempts.",
        LOW,
        check=at_least(0),
    ),
    string(
        "metadata.log.dir", None, "The folder of the metadata log; by default the first of `log.dirs`.", HIGH
    ),
    int32(
        "metadata.log.segment.bytes",
        GIB,
        "The size of a segment of the metadata log.",
        HIGH,
        check=at_least(8 * MIB),
    ),
    int64(
        "metadata.log.segment.ms",
        7 * DAY_MS,
        "The age at which a segment of the metadata log is closed.",
        HIGH,
    ),
    int64(
        "metadata.log.max.record.bytes.between.snapshots",
        20 * MIB,
        "New bytes in the metadata log after which a snapshot is written.",
        HIGH,
        check=at_least(1),
    ),
    int64(
        "metadata.log.max.snapshot.interval.ms",
        HOUR_MS,
        "The longest time between snapshots while there are new records; 0 means no limit of time.",
        HIGH,
        check=at_least(0),
    ),
    int64(
        "metadata.max.retention.bytes",
        100 * MIB,
        "The oldest snapshot is deleted if metadata segments and snapshots have more bytes than "
        "this; -1 means never.",
        HIGH,
    ),
    int64(
        "metadata.max.retention.ms",
        7 * DAY_MS,
        "A metadata snapshot is deleted if its last record is older than this; -1 means never.",
        HIGH,
    ),
    int32(
        "metadata.max.idle.interval.ms",
        500,
        "Interval at which the active controller writes a record without content (KIP-835); 0 means never.",
        LOW,
        check=at_least(0),
    ),
    int32("controller.socket.timeout.ms", 30_000, "How long a broker waits for the answer of a controller."),
    string("metadata.recovery.strategy", "rebootstrap", "Accepted for compatibility.", LOW, has_effect=False),
    string("authorizer.class.name", "", "The authorizer. If it is empty, everything is allowed.", LOW),
)
