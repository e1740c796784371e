"""AlterPartition: the controller checks and records the in-sync sets that leaders propose (KIP-497,
KIP-841)."""

from moldau.cluster.decisions.brokers import registered
from moldau.cluster.decisions.partitions.decisive_minimum import minima_after
from moldau.cluster.decisions.partitions.partition_change import Wanted, change_partition
from moldau.cluster.decisions.partitions.topic_rules import rules_of
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.partition import LeaderRecoveryState, PartitionRegistration
from moldau.cluster.image.topics_delta import changed_partition
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.messages import alter_partition as messages
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def alter_partition(view: View, request: messages.AlterPartitionRequest) -> ControllerResult:
    """Apply the in-sync sets that leaders propose (KIP-497, KIP-841).

    Raises ``KafkaError(stale_broker_epoch)`` for the whole request. Other refusals are per partition.
    """
    registered(view, request.broker_id, request.broker_epoch)
    records: list[Message] = []
    topics = []
    for topic_data in request.topics:
        topic = view.image.topics.get_by_id(topic_data.topic_id)
        answers = []
        for data in topic_data.partitions:
            try:
                answers.append(_alter_one(view, request.broker_id, topic, data, records))
            except KafkaError as error:
                answers.append(
                    messages.AlterPartitionResponsePartitionData(
                        partition_index=data.partition_index, error_code=error.code
                    )
                )
        topics.append(
            messages.AlterPartitionResponseTopicData(topic_id=topic_data.topic_id, partitions=answers)
        )
    records += minima_after(view, records)
    return ControllerResult(messages.AlterPartitionResponse(topics=topics), records)


def _alter_one(
    view: View,
    broker_id: int,
    topic: Topic | None,
    data: messages.AlterPartitionRequestPartitionData,
    records: list[Message],
) -> messages.AlterPartitionResponsePartitionData:
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_id, "No topic has this id.")
    if not 0 <= data.partition_index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "The topic has no such partition.")
    partition = topic.partitions[data.partition_index]
    _check_proposal(view, broker_id, partition, data)
    wanted = Wanted(isr=_proposed_isr(data), recovery_state=LeaderRecoveryState(data.leader_recovery_state))
    record = change_partition(topic.topic_id, data.partition_index, partition, rules_of(view, topic), wanted)
    if record is not None:
        records.append(record)
        partition = changed_partition(partition, record)
    return messages.AlterPartitionResponsePartitionData(
        partition_index=data.partition_index,
        error_code=ErrorCode.none if partition.leader == broker_id else ErrorCode.new_leader_elected,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _proposed_isr(data: messages.AlterPartitionRequestPartitionData) -> tuple[int, ...]:
    """The proposed in-sync set. Version 3 also contains each replica's broker epoch; version 2 does not."""
    return tuple(state.broker_id for state in data.new_isr_with_epochs) or tuple(data.new_isr)


def _check_proposal(
    view: View,
    broker_id: int,
    partition: PartitionRegistration,
    data: messages.AlterPartitionRequestPartitionData,
) -> None:
    """Check a proposal. The order of the checks is important. If several checks would fail, the response has
    the error of the first failed check, and the leader's reaction depends on this error."""
    isr = _proposed_isr(data)
    if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
        raise KafkaError(ErrorCode.not_controller, "The leader knows a later epoch than this controller.")
    if data.leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.fenced_leader_epoch, "A later leader was elected.")
    if broker_id != partition.leader:
        raise KafkaError(ErrorCode.invalid_request, f"Broker {broker_id} does not lead the partition.")
    if data.partition_epoch < partition.partition_epoch:
        raise KafkaError(ErrorCode.invalid_update_version, "The partition has changed since.")
    if not isr or len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
        raise KafkaError(ErrorCode.invalid_request, "The in-sync set is not made of replicas.")
    if broker_id not in isr:
        raise KafkaError(ErrorCode.invalid_request, "The leader leaves itself out of the in-sync set.")
    _check_recovery(partition, data.leader_recovery_state, isr)
    epochs = {state.broker_id: state.broker_epoch for state in data.new_isr_with_epochs}
    for replica in isr:
        if not _is_eligible(view, partition, replica, epochs.get(replica, -1)):
            raise KafkaError(ErrorCode.ineligible_replica, f"Replica {replica} cannot join the in-sync set.")


def _check_recovery(partition: PartitionRegistration, proposed: int, isr: tuple[int, ...]) -> None:
    if proposed not in (0, 1):
        raise KafkaError(ErrorCode.invalid_request, f"Unknown leader recovery state {proposed}.")
    if proposed == LeaderRecoveryState.RECOVERING:
        if partition.leader_recovery_state is LeaderRecoveryState.RECOVERED:
            raise KafkaError(ErrorCode.invalid_request, "A recovered leader cannot become unrecovered.")
        if len(isr) > 1:
            raise KafkaError(ErrorCode.invalid_request, "A recovering leader is alone in its in-sync set.")


def _is_eligible(view: View, partition: PartitionRegistration, replica: int, epoch: int) -> bool:
    broker = view.image.brokers.get(replica)
    if broker is None or not view.can_use(replica, partition.directory_of(replica)):
        return False
    return epoch in (-1, broker.epoch)
