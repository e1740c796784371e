"""Keys for a node's identity, its listeners, and its metadata quorum."""

from moldau.config.bounds import at_least, list_of, list_of_any, not_empty, one_of
from moldau.config.keys.rows import (
    CLUSTER_WIDE,
    DAY_MS,
    GIB,
    HIGH,
    HOUR_MS,
    INT_MAX,
    KIB,
    LOW,
    MIB,
    MINUTE_MS,
    PER_BROKER,
    boolean,
    int32,
    int64,
    list_,
    string,
)

_PROTOCOL_MAP = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
_NO_THREADS = "Accepted for Kafka's sake: one event loop serves all of it here."

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
        "Accepted for Kafka's sake; ids are always given.",
        has_effect=False,
    ),
    int32(
        "reserved.broker.max.id",
        1000,
        "Accepted for Kafka's sake; ids are always given.",
        check=at_least(0),
        has_effect=False,
    ),
    string(
        "broker.rack",
        None,
        "The rack or zone of this broker, for placing replicas and for reading from close by.",
    ),
    int32(
        "initial.broker.registration.timeout.ms",
        MINUTE_MS,
        "How long a starting broker tries to register before it gives up.",
    ),
    int32("broker.heartbeat.interval.ms", 2000, "How often a broker tells the controller that it lives."),
    int32(
        "broker.session.timeout.ms",
        9000,
        "After this long without a heartbeat the controller fences a broker.",
    ),
    int64(
        "server.max.startup.time.ms",
        2**63 - 1,
        "A node that has not started after this long gives up.",
        check=at_least(0),
    ),
    boolean("controlled.shutdown.enable", True, "A stopping broker first hands its partitions over."),
    int32(
        "controlled.shutdown.max.retries",
        3,
        "Accepted for Kafka's sake; the controller decides when a broker may go.",
        has_effect=False,
    ),
    int64(
        "controlled.shutdown.retry.backoff.ms",
        5000,
        "Accepted for Kafka's sake; the controller decides when a broker may go.",
        has_effect=False,
    ),
    int32(
        "background.threads", 10, _NO_THREADS, HIGH, check=at_least(1), update=CLUSTER_WIDE, has_effect=False
    ),
    int32("num.io.threads", 8, _NO_THREADS, HIGH, check=at_least(1), update=CLUSTER_WIDE, has_effect=False),
    int32(
        "num.network.threads", 3, _NO_THREADS, HIGH, check=at_least(1), update=CLUSTER_WIDE, has_effect=False
    ),
    int32("request.timeout.ms", 30_000, "How long this node waits for the answer of another one.", HIGH),
    int64(
        "socket.connection.setup.timeout.ms",
        10_000,
        "How long this node waits for a connection to another one.",
    ),
    int64("socket.connection.setup.timeout.max.ms", 30_000, "The longest such wait after failures in a row."),
    boolean("unstable.api.versions.enable", False, "Offer versions of APIs that are not final yet.", HIGH),
    boolean("unstable.feature.versions.enable", False, "Accept feature levels that are not final yet.", HIGH),
)

LISTENERS = (
    list_(
        "listeners",
        ("PLAINTEXT://:9092",),
        "Where to listen: a list of `NAME://host:port`. An empty host is every interface, port 0 a free one.",
        HIGH,
        check=list_of_any(may_be_empty=False),
        update=PER_BROKER,
    ),
    list_(
        "advertised.listeners",
        None,
        "The addresses that clients are told, when they differ from `listeners`.",
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
        "The listener on which brokers talk to each other.",
        check=not_empty(),
    ),
    string(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "The security protocol among brokers, where `inter.broker.listener.name` is not set.",
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
        "`SO_SNDBUF` of client connections; unless it is set here, the system's own sizing is used.",
        HIGH,
    ),
    int32(
        "socket.receive.buffer.bytes",
        100 * KIB,
        "`SO_RCVBUF` of client connections; unless it is set here, the system's own sizing is used.",
        HIGH,
    ),
    int32(
        "socket.request.max.bytes",
        100 * MIB,
        "The largest request; a larger one closes its connection.",
        HIGH,
        check=at_least(1),
    ),
    int32(
        "socket.listen.backlog.size", 50, "How many connections may wait to be accepted.", check=at_least(1)
    ),
    int32(
        "max.connections", INT_MAX, "Connections at the same time.", check=at_least(0), update=CLUSTER_WIDE
    ),
    int32(
        "max.connections.per.ip",
        INT_MAX,
        "Connections at the same time from one address.",
        check=at_least(0),
        update=CLUSTER_WIDE,
    ),
    string(
        "max.connections.per.ip.overrides",
        "",
        "Other bounds for single addresses: `host:count,…`.",
        update=CLUSTER_WIDE,
    ),
    int32(
        "max.connection.creation.rate",
        INT_MAX,
        "Accepted for Kafka's sake; connections are bounded in number, not in rate.",
        check=at_least(0),
        update=CLUSTER_WIDE,
        has_effect=False,
    ),
    int64("connections.max.idle.ms", 10 * MINUTE_MS, "A connection that is silent for this long is closed."),
    int32(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a refused log-in waits for its answer.",
        LOW,
        check=at_least(0),
    ),
    int64(
        "connections.max.reauth.ms", 0, "When positive, SASL clients must authenticate anew within this time."
    ),
    int32(
        "queued.max.requests",
        500,
        "Accepted for Kafka's sake: there is no queue; bytes, and requests of a connection, are bounded.",
        HIGH,
        check=at_least(1),
        has_effect=False,
    ),
    int64(
        "queued.max.request.bytes",
        -1,
        "Bytes of requests that are held, over all connections, before reading stops; -1 is no bound.",
    ),
)

QUORUM = (
    list_("controller.quorum.voters", (), "The controllers of a static quorum: `id@host:port,…`.", HIGH),
    list_(
        "controller.quorum.bootstrap.servers",
        (),
        "Where to find the controllers of a dynamic quorum: `host:port,…`.",
        HIGH,
    ),
    boolean("controller.quorum.auto.join.enable", False, "A new controller adds itself to the voters.", LOW),
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
        "How long without a fetch from the leader, or from most voters, before the leader is given up.",
        HIGH,
        check=at_least(0),
    ),
    int32(
        "controller.quorum.election.backoff.max.ms",
        1000,
        "The longest wait between elections that nobody won; it is a random part of this.",
        HIGH,
        check=at_least(0),
    ),
    int32(
        "controller.quorum.append.linger.ms",
        25,
        "How long the leader gathers records before it writes them; unless set here, until the disk is free.",
        check=at_least(0),
    ),
    int32(
        "controller.quorum.request.timeout.ms",
        2000,
        "How long a controller waits for the answer of another one.",
        check=at_least(0),
    ),
    int32(
        "controller.quorum.retry.backoff.ms",
        20,
        "How long to wait before a failed request of the quorum is repeated.",
        LOW,
        check=at_least(0),
    ),
    int32("controller.quorum.retry.backoff.max.ms", 1000, "The longest such wait.", LOW, check=at_least(0)),
    string(
        "metadata.log.dir", None, "Where the metadata log lives; by default in the first of `log.dirs`.", HIGH
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
        "The longest time between snapshots when there are new records; 0 is never by time.",
        HIGH,
        check=at_least(0),
    ),
    int64(
        "metadata.max.retention.bytes",
        100 * MIB,
        "The size of metadata log and snapshots beyond which old ones are removed.",
        HIGH,
    ),
    int64(
        "metadata.max.retention.ms",
        7 * DAY_MS,
        "The age beyond which metadata log and snapshots are removed.",
        HIGH,
    ),
    int32(
        "metadata.max.idle.interval.ms",
        500,
        "How often the leader writes a record that says nothing but that time passed; 0 is never.",
        LOW,
        check=at_least(0),
    ),
    int32("controller.socket.timeout.ms", 30_000, "How long a broker waits for the answer of a controller."),
    string("metadata.recovery.strategy", "rebootstrap", "Accepted for Kafka's sake.", LOW, has_effect=False),
    string("authorizer.class.name", "", "The authorizer; empty allows everything.", LOW),
)
