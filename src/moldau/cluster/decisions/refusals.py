"""Makes the responses to requests that are refused as a whole, if such a response has error fields only in
its entries. Every entry of the response then gets the error."""

from typing import Any

from moldau.protocol.messages import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    incremental_alter_configs,
)
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode


def refuse_create_topics(request: Any, code: ErrorCode, text: str | None) -> Message:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(
                name=topic.name, error_code=code, error_message=text, configs=None
            )
            for topic in request.topics
        ]
    )


def refuse_delete_topics(request: Any, code: ErrorCode, text: str | None) -> Message:
    states = [*request.topics, *(delete_topics.DeleteTopicState(name=name) for name in request.topic_names)]
    return delete_topics.DeleteTopicsResponse(
        responses=[
            delete_topics.DeletableTopicResult(
                name=state.name, topic_id=state.topic_id, error_code=code, error_message=text
            )
            for state in states
        ]
    )


def refuse_create_partitions(request: Any, code: ErrorCode, text: str | None) -> Message:
    return create_partitions.CreatePartitionsResponse(
        results=[
            create_partitions.CreatePartitionsTopicResult(
                name=topic.name, error_code=code, error_message=text
            )
            for topic in request.topics
        ]
    )


def refuse_alter_configs(request: Any, code: ErrorCode, text: str | None) -> Message:
    return alter_configs.AlterConfigsResponse(
        responses=[
            alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def refuse_incremental_alter_configs(request: Any, code: ErrorCode, text: str | None) -> Message:
    return incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[
            incremental_alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )
