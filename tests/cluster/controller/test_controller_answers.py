"""For every request that the controller accepts, the response has a field for an error code."""

import pytest

from moldau.cluster.controller.answers import error_response
from moldau.cluster.controller.decided_apis import DECISIONS
from moldau.protocol.messages import alter_configs, create_partitions, create_topics, delete_topics
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode

FILLED: dict[type[Message], Message] = {
    create_topics.CreateTopicsRequest: create_topics.CreateTopicsRequest(
        topics=[create_topics.CreatableTopic(name="t")]
    ),
    delete_topics.DeleteTopicsRequest: delete_topics.DeleteTopicsRequest(topic_names=["t"]),
    create_partitions.CreatePartitionsRequest: create_partitions.CreatePartitionsRequest(
        topics=[create_partitions.CreatePartitionsTopic(name="t")]
    ),
    alter_configs.AlterConfigsRequest: alter_configs.AlterConfigsRequest(
        resources=[alter_configs.AlterConfigsResource(resource_type=2, resource_name="t")]
    ),
    incremental.IncrementalAlterConfigsRequest: incremental.IncrementalAlterConfigsRequest(
        resources=[incremental.AlterConfigsResource(resource_type=2, resource_name="t")]
    ),
}


@pytest.mark.parametrize("request_class", DECISIONS, ids=lambda cls: cls.__name__)
def test_a_refusal_is_in_the_response(request_class: type[Message]) -> None:
    request = FILLED.get(request_class) or request_class()
    response = error_response(request, ErrorCode.not_controller, "Not here.")
    assert response.API_KEY == request.API_KEY
    assert "not_controller" in repr(response)
