"""Sends commands to a controller and prints the controller's decisions, for golden scripts.

A script is a list of cases: command lines, ``----``, the expected output, a blank line. Rewrite the
expected outputs with ``GOLDEN_REWRITE=1 pytest tests/cluster``. Most commands send one request
to the controller, with default values for omitted options. The commands about chunks are in
``chunk_commands``, and the commands about ended processes are in ``process_commands``. The other
commands are::

    brokers 1 2:rack-a 3                      register and unfence brokers
    diskless-default                          new topics are diskless by default from now on
    register 1 [incarnation=N] [cluster=X] [dirs=N,N] [previous=EPOCH] [clients] [apache]
                                              register a broker; with ``clients``, it has a
                                              second listener
    controller 101 [apache]                   register a controller
    quorum [voters=N,N] [observers=N,N]       set the other nodes of the quorum
    heartbeat 1 [offset=N] [fence] [shutdown] [epoch=N] [failed=N,N]
                                              ``failed`` are log directories
    assign 1 NAME-0=N ... [epoch=N]           assign replicas of a broker to log directories
    create NAME [partitions=N] [replicas=N] [assign=1,2/2,3] [validate] [key=value ...]
    delete NAME | id:NAME
    grow NAME to=N [assign=1,2/2,3] [validate]
                                              add partitions
    set|append|subtract RESOURCE KEY VALUE    change a config
    unset RESOURCE KEY
    replace RESOURCE KEY=VALUE ...            replace all configs of a resource
    isr NAME-0 by=1 isr=1,2 [leader_epoch=N] [partition_epoch=N] [recovery=N] [epochs=1:N] [broker_epoch=N]
                                              a leader proposes an in-sync set
    elect preferred|unclean [NAME-0 ...]
    move NAME-0 to=2,3|cancel [fixed-factor]  begin or cancel a reassignment
    moves [NAME-0 ...]                        list reassignments
    features NAME=LEVEL [type=N] [validate]
    producer-ids 1                            allocate a block of producer ids to a broker
    unregister 1
    time N                                    wait N ms, then fence brokers whose session has expired
    silence 1                                 wait until the session of this broker has expired; all other
                                              active brokers send heartbeats
    elect-unclean                             make the periodic unclean elections
    show                                      print topics, brokers and configs

``apache`` registers a node that does not support Moldau's own features.
"""

import uuid
from collections.abc import Callable

from chunk_commands import ChunkCommands, shown_chunk
from cluster_fakes import SmallConfigPolicy
from process_commands import ProcessCommands

from moldau.cluster.controller.controller import Controller
from moldau.cluster.decisions.features import SUPPORTED_FEATURES
from moldau.cluster.decisions.kinds.diskless import DISKLESS_FEATURE
from moldau.cluster.decisions.view import ControllerSettings, QuorumMembers
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image import CHUNK_FEATURE, EMPTY_IMAGE, ResourceType
from moldau.cluster.image.image_records import to_records
from moldau.protocol.messages import (
    allocate_producer_ids,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    assign_replicas_to_dirs,
    broker_heartbeat,
    broker_registration,
    controller_registration,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    unregister_broker,
    update_features,
)
from moldau.protocol.records.metadata import FeatureLevelRecord
from moldau.protocol.schema import ZERO_UUID, Message
from moldau.runtime import ErrorCode, KafkaError, SeededEntropy

CLUSTER_ID = "MoldauScriptClusterIdA"
_HIDDEN = {
    "throttle_time_ms",
    "configs",
    "features",
    "end_points",
    "incarnation_id",
    "is_migrating_zk_broker",
}


class ControllerScript(ChunkCommands, ProcessCommands):
    """One controller. An offset counter takes the place of its log."""

    def __init__(self) -> None:
        ProcessCommands.__init__(self)
        settings = ControllerSettings(
            cluster_id=CLUSTER_ID,
            supported_features=SUPPORTED_FEATURES,
            enabled_kinds=frozenset({"diskless"}),
            partitions_per_request_max=50,
            partitions_per_broker_max=12,
            first_probed_listener="PLAINTEXT",
        )
        self._members = QuorumMembers()
        self.controller = Controller(
            settings, SmallConfigPolicy(), SeededEntropy(7), members=lambda: self._members
        )
        self.now_ms = 0
        self.next_offset = 0
        self._topic_ids: dict[uuid.UUID, str] = {}
        self.controller.activate(EMPTY_IMAGE, 0)
        self._commit(
            self.controller.bootstrap([FeatureLevelRecord(name="metadata.version", feature_level=29)])
        )
        # Broker epochs in the scripts are offsets. Therefore the first offset is fixed, so that it does not
        # depend on the number of features.
        self.next_offset = 1

    def run(self, line: str) -> str:
        """Run one command line. Returns its outcome."""
        name, *words = line.split()
        flags = {word for word in words if "=" not in word}
        options = dict(word.split("=", 1) for word in words if "=" in word)
        handler: Callable[[list[str], set[str], dict[str, str]], str] = getattr(
            self, "do_" + name.replace("-", "_")
        )
        return handler(words, flags, options)

    def send(self, request: Message) -> str:
        """Decide and replay. Check that a snapshot of the resulting image has the same content as
        the image."""
        try:
            result = self.controller.handle(request, self.now_ms, self.next_offset)
        except KafkaError as error:
            return f"{error.code.name}: {error.message}\n"
        text = self._commit(result.records)
        image = self.controller.image
        again = image_of(to_records(image))
        assert again == image
        assert dict(again.topics.replica_load.items()) == dict(image.topics.replica_load.items())
        warning = f"  ! {result.warning}\n" if result.warning else ""
        return text + warning + self._response(result.response)

    def _commit(self, records: list[Message] | tuple[Message, ...]) -> str:
        self.controller.replay(records)
        self.next_offset += len(records)
        for topic in self.controller.image.topics:
            self._topic_ids[topic.topic_id] = topic.name
        return "".join(f"  + {self._show(record)}\n" for record in records)

    def _response(self, response: Message) -> str:
        rows = [
            value
            for field in response.__dataclass_fields__
            if isinstance(value := getattr(response, field), list)
        ]
        if not rows:
            return self._show(response) + "\n"
        return "".join(self._show(row) + "\n" for row in rows[0])

    def _show(self, value: object) -> str:
        if isinstance(value, Message):
            parts = []
            for name, field in value.__dataclass_fields__.items():
                item = getattr(value, name)
                if name in _HIDDEN or (item == field.default and name != "partition_id"):
                    continue
                if item in ((), []) or item is None or name == "timeout_ms":
                    continue
                parts.append(f"{name}={self._show(item)}")
            return f"{type(value).__name__.removesuffix('Record')}({', '.join(parts)})"
        if isinstance(value, uuid.UUID):
            return self._topic_ids.get(value, f"#{value.int}" if value.int < 1_000_000 else "<new>").replace(
                "x" * 249, "<249>"
            )
        if isinstance(value, ErrorCode):
            return value.name
        if isinstance(value, list | tuple):
            return "[" + " ".join(self._show(item) for item in value) + "]"
        return str(value.value if hasattr(value, "value") else value).replace("x" * 249, "<249>")

    def _epoch(self, broker_id: int) -> int:
        broker = self.controller.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    def do_diskless_default(self, _words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        settings = ControllerSettings(cluster_id=CLUSTER_ID, enabled_kinds=frozenset({"diskless"}))
        image = self.controller.image
        policy = SmallConfigPolicy(diskless_default=True)
        self.controller = Controller(settings, policy, SeededEntropy(7))
        self.controller.activate(image, self.now_ms)
        return "ok\n"

    def do_brokers(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        for word in words:
            broker_id, _, rack = word.partition(":")
            self.send(self._registration(int(broker_id), rack or None, {}))
            self.run(f"heartbeat {broker_id} offset=1000000")
        return "ok\n"

    def _registration(
        self,
        broker_id: int,
        rack: str | None,
        options: dict[str, str],
        own_features: bool = True,
        has_clients: bool = False,
    ) -> Message:
        dirs = options.get("dirs", str(1000 + broker_id)).split(",")
        return broker_registration.BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=options.get("cluster", CLUSTER_ID),
            incarnation_id=uuid.UUID(int=int(options.get("incarnation", str(500 + broker_id)))),
            listeners=[
                broker_registration.Listener(name=name, host=host, port=9092, security_protocol=0)
                for name, host in (
                    *([("CLIENTS", f"public{broker_id}")] if has_clients else ()),
                    ("PLAINTEXT", f"host{broker_id}"),
                )
            ],
            features=[
                broker_registration.Feature(
                    name="metadata.version",
                    min_supported_version=7,
                    max_supported_version=int(options.get("level", "29")),
                ),
                broker_registration.Feature(
                    name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1
                ),
                *(
                    [
                        broker_registration.Feature(
                            name=name, min_supported_version=0, max_supported_version=1
                        )
                        for name in (DISKLESS_FEATURE, CHUNK_FEATURE)
                    ]
                    if own_features
                    else ()
                ),
            ],
            previous_broker_epoch=int(options.get("previous", "-1")),
            rack=rack,
            log_dirs=[uuid.UUID(int=int(number)) for number in dirs],
        )

    def do_register(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        rack, own_features = options.get("rack"), "apache" not in flags
        return self.send(self._registration(int(words[0]), rack, options, own_features, "clients" in flags))

    def do_controller(self, words: list[str], flags: set[str], _options: dict[str, str]) -> str:
        names = (
            ["metadata.version"]
            if "apache" in flags
            else ["metadata.version", DISKLESS_FEATURE, CHUNK_FEATURE]
        )
        return self.send(
            controller_registration.ControllerRegistrationRequest(
                controller_id=int(words[0]),
                features=[
                    controller_registration.Feature(
                        name=name, min_supported_version=0, max_supported_version=29
                    )
                    for name in names
                ],
            )
        )

    def do_quorum(self, _words: list[str], _flags: set[str], options: dict[str, str]) -> str:
        voters, observers = (
            frozenset(map(int, filter(None, options.get(name, "").split(","))))
            for name in ("voters", "observers")
        )
        self._members = QuorumMembers(voters, observers)
        return "ok\n"

    def do_heartbeat(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        broker_id = int(words[0])
        return self.send(
            broker_heartbeat.BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=int(options.get("epoch", self._epoch(broker_id))),
                current_metadata_offset=int(options.get("offset", self.next_offset)),
                want_fence="fence" in flags,
                want_shut_down="shutdown" in flags,
                offline_log_dirs=[
                    uuid.UUID(int=int(number)) for number in options.get("failed", "").split(",") if number
                ],
            )
        )

    def do_assign(self, words: list[str], _flags: set[str], options: dict[str, str]) -> str:
        broker_id = int(words[0])
        epoch = int(options.pop("epoch", self._epoch(broker_id)))
        directories = []
        for name, number in options.items():
            topic_name, _, index = name.rpartition("-")
            topic = self.controller.image.topics.get(topic_name)
            row = assign_replicas_to_dirs.AssignReplicasToDirsRequestTopicData(
                topic_id=topic.topic_id if topic else uuid.UUID(int=999_999),
                partitions=[
                    assign_replicas_to_dirs.AssignReplicasToDirsRequestPartitionData(
                        partition_index=int(index)
                    )
                ],
            )
            directories.append(
                assign_replicas_to_dirs.AssignReplicasToDirsRequestDirectoryData(
                    id_=uuid.UUID(int=int(number)), topics=[row]
                )
            )
        return self.send(
            assign_replicas_to_dirs.AssignReplicasToDirsRequest(
                broker_id=broker_id, broker_epoch=epoch, directories=directories
            )
        )

    def do_create(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        configs = {key: value for key, value in options.items() if "." in key}
        assignments = options.get("assign")
        default = "-1" if assignments else "1"
        return self.send(
            create_topics.CreateTopicsRequest(
                topics=[
                    create_topics.CreatableTopic(
                        name="" if name == "''" else name.replace("<249>", "x" * 249),
                        num_partitions=int(options.get("partitions", default)),
                        replication_factor=int(options.get("replicas", default)),
                        assignments=[
                            create_topics.CreatableReplicaAssignment(
                                partition_index=int(index), broker_ids=_ids(replicas)
                            )
                            for index, replicas in _numbered(assignments)
                        ],
                        configs=[
                            create_topics.CreatableTopicConfig(
                                name=key, value=None if value == "null" else value
                            )
                            for key, value in configs.items()
                        ],
                    )
                    for name in words
                    if "=" not in name and name != "validate"
                ],
                validate_only="validate" in flags,
            )
        )

    def do_delete(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        states = []
        for word in words:
            if word.startswith("id:"):
                topic = self.controller.image.topics.get(word[3:])
                topic_id = uuid.UUID(int=999_999) if topic is None else topic.topic_id
                states.append(delete_topics.DeleteTopicState(topic_id=topic_id))
            elif word == "nothing":
                states.append(delete_topics.DeleteTopicState(topic_id=ZERO_UUID))
            else:
                states.append(delete_topics.DeleteTopicState(name=word))
        return self.send(delete_topics.DeleteTopicsRequest(topics=states))

    def do_grow(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        assignments = options.get("assign")
        return self.send(
            create_partitions.CreatePartitionsRequest(
                topics=[
                    create_partitions.CreatePartitionsTopic(
                        name=words[0],
                        count=int(options["to"]),
                        assignments=None
                        if assignments is None
                        else [
                            create_partitions.CreatePartitionsAssignment(broker_ids=_ids(replicas))
                            for _, replicas in _numbered(assignments)
                        ],
                    )
                ],
                validate_only="validate" in flags,
            )
        )

    def _operate(self, operation: int, words: list[str]) -> str:
        resource_type, name = _resource(words[0])
        return self.send(
            incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[
                    incremental_alter_configs.AlterConfigsResource(
                        resource_type=resource_type,
                        resource_name=name,
                        configs=[
                            incremental_alter_configs.AlterableConfig(
                                name=words[1],
                                config_operation=operation,
                                value=words[2] if len(words) > 2 else None,
                            )
                        ],
                    )
                ]
            )
        )

    def do_set(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._operate(0, words)

    def do_unset(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._operate(1, words)

    def do_append(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._operate(2, words)

    def do_subtract(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._operate(3, words)

    def do_replace(self, words: list[str], _flags: set[str], options: dict[str, str]) -> str:
        resource_type, name = _resource(words[0])
        configs = [alter_configs.AlterableConfig(name=key, value=value) for key, value in options.items()]
        resource = alter_configs.AlterConfigsResource(
            resource_type=resource_type, resource_name=name, configs=configs
        )
        return self.send(alter_configs.AlterConfigsRequest(resources=[resource]))

    def do_isr(self, words: list[str], _flags: set[str], options: dict[str, str]) -> str:
        name, _, index = words[0].rpartition("-")
        topic = self.controller.image.topics.get(name)
        partition = None
        if topic is not None and int(index) < len(topic.partitions):
            partition = topic.partitions[int(index)]
        leader = int(options["by"])
        epochs = dict(pair.split(":") for pair in options.get("epochs", "").split(",") if pair)
        return self.send(
            alter_partition.AlterPartitionRequest(
                broker_id=leader,
                broker_epoch=int(options.get("broker_epoch", self._epoch(leader))),
                topics=[
                    alter_partition.AlterPartitionRequestTopicData(
                        topic_id=topic.topic_id if topic else uuid.UUID(int=999_999),
                        partitions=[
                            alter_partition.AlterPartitionRequestPartitionData(
                                partition_index=int(index),
                                leader_epoch=int(
                                    options.get("leader_epoch", partition.leader_epoch if partition else 0)
                                ),
                                partition_epoch=int(
                                    options.get(
                                        "partition_epoch", partition.partition_epoch if partition else 0
                                    )
                                ),
                                leader_recovery_state=int(options.get("recovery", "0")),
                                new_isr_with_epochs=[
                                    alter_partition.BrokerState(
                                        broker_id=replica,
                                        broker_epoch=int(epochs.get(str(replica), self._epoch(replica))),
                                    )
                                    for replica in _ids(options["isr"])
                                ],
                            )
                        ],
                    )
                ],
            )
        )

    def do_elect(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        wanted = None
        if len(words) > 1:
            wanted = [
                elect_leaders.TopicPartitions(topic=name, partitions=[int(index)])
                for name, _, index in (word.rpartition("-") for word in words[1:])
            ]
        return self.send(
            elect_leaders.ElectLeadersRequest(
                election_type=["preferred", "unclean"].index(words[0]), topic_partitions=wanted
            )
        )

    def do_move(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        name, _, index = words[0].rpartition("-")
        replicas = None if options["to"] == "cancel" else _ids(options["to"])
        moved = alter_partition_reassignments.ReassignablePartition(
            partition_index=int(index), replicas=replicas
        )
        return self.send(
            alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                allow_replication_factor_change="fixed-factor" not in flags,
                topics=[alter_partition_reassignments.ReassignableTopic(name=name, partitions=[moved])],
            )
        )

    def do_moves(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        wanted = [
            list_partition_reassignments.ListPartitionReassignmentsTopics(
                name=name, partition_indexes=[int(index)]
            )
            for name, _, index in (word.rpartition("-") for word in words)
        ]
        return self.send(
            list_partition_reassignments.ListPartitionReassignmentsRequest(topics=wanted or None)
        )

    def do_features(self, _words: list[str], flags: set[str], options: dict[str, str]) -> str:
        kind = int(options.pop("type", "1"))
        updates = [
            update_features.FeatureUpdateKey(feature=name, max_version_level=int(level), upgrade_type=kind)
            for name, level in options.items()
        ]
        result = self.send(
            update_features.UpdateFeaturesRequest(feature_updates=updates, validate_only="validate" in flags)
        )
        return result

    def do_producer_ids(self, words: list[str], _flags: set[str], options: dict[str, str]) -> str:
        broker_id = int(words[0])
        return self.send(
            allocate_producer_ids.AllocateProducerIdsRequest(
                broker_id=broker_id, broker_epoch=int(options.get("epoch", self._epoch(broker_id)))
            )
        )

    def do_unregister(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self.send(unregister_broker.UnregisterBrokerRequest(broker_id=int(words[0])))

    def do_time(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        self.now_ms += int(words[0])
        text = ""
        while records := self.controller.expire_sessions(self.now_ms, self.next_offset):
            text += self._commit(list(records))
        return text or "nothing\n"

    def do_silence(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        text = ""
        for _ in range(4):
            for broker in self.controller.image.brokers.values():
                if broker.is_active and broker.broker_id != int(words[0]):
                    self.run(f"heartbeat {broker.broker_id}")
            text = self.run("time 3000")
        return text

    def do_elect_unclean(self, _words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._commit(list(self.controller.elect_unclean())) or "nothing\n"

    def do_show(self, _words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        image = self.controller.image
        lines = []
        for topic in image.topics:
            for index, partition in enumerate(topic.partitions):
                owner = partition.owner
                lines.append(
                    f"{topic.name}-{index} leader={partition.leader}@{partition.leader_epoch} "
                    f"replicas={list(partition.replicas)} isr={list(partition.isr)} "
                    f"epoch={partition.partition_epoch}"
                    + (f" coordinator={owner}" if owner >= 0 else "")
                    + (
                        f" eligible={list(eligible)}"
                        if (eligible := partition.eligible_leader_replicas)
                        else ""
                    )
                    + (f" start={partition.start_offset}" if partition.start_offset >= 0 else "")
                )
                lines += [shown_chunk(chunk) for chunk in partition.chunks]
        for broker in image.brokers.values():
            state = (
                "fenced" if broker.fenced else "shutting down" if broker.in_controlled_shutdown else "active"
            )
            lines.append(f"broker {broker.broker_id} epoch={broker.epoch} {state}")
        for (kind, name), values in image.configs.items():
            lines.append(f"config {ResourceType(kind).name.lower()}:{name} {dict(sorted(values.items()))}")
        return "".join(line + "\n" for line in lines)


def _ids(text: str) -> list[int]:
    return [int(item) for item in text.split(",") if item]


def _numbered(text: str | None) -> list[tuple[str, str]]:
    """In ``1,2/2,3`` the partitions are numbered from 0. The numbers may also be given, as in
    ``0:1,2/0:2,3``."""
    numbered = []
    for position, item in enumerate(text.split("/") if text else []):
        index, colon, replicas = item.rpartition(":")
        numbered.append((index if colon else str(position), replicas))
    return numbered


def _resource(text: str) -> tuple[int, str]:
    kind, _, name = text.partition(":")
    return (ResourceType[kind.upper()] if not kind.isdecimal() else int(kind)), name
