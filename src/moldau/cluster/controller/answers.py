"""Responses to refused requests: the error is set where each response has a field for it."""

import sys
from collections.abc import Callable
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


def _create_topics(request: Any, code: ErrorCode, text: str | None) -> Message:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(
                name=topic.name, error_code=code, error_message=text, configs=None
            )
            for topic in request.topics
        ]
    )


def _delete_topics(request: Any, code: ErrorCode, text: str | None) -> Message:
    states = [*request.topics, *(delete_topics.DeleteTopicState(name=name) for name in request.topic_names)]
    return delete_topics.DeleteTopicsResponse(
        responses=[
            delete_topics.DeletableTopicResult(
                name=state.name, topic_id=state.topic_id, error_code=code, error_message=text
            )
            for state in states
        ]
    )


def _create_partitions(request: Any, code: ErrorCode, text: str | None) -> Message:
    return create_partitions.CreatePartitionsResponse(
        results=[
            create_partitions.CreatePartitionsTopicResult(
                name=topic.name, error_code=code, error_message=text
            )
            for topic in request.topics
        ]
    )


def _alter_configs(request: Any, code: ErrorCode, text: str | None) -> Message:
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


def _incremental_alter_configs(request: Any, code: ErrorCode, text: str | None) -> Message:
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


_PER_ITEM: dict[type[Message], Callable[[Any, ErrorCode, str | None], Message]] = {
    create_topics.CreateTopicsRequest: _create_topics,
    delete_topics.DeleteTopicsRequest: _delete_topics,
    create_partitions.CreatePartitionsRequest: _create_partitions,
    alter_configs.AlterConfigsRequest: _alter_configs,
    incremental_alter_configs.IncrementalAlterConfigsRequest: _incremental_alter_configs,
}


def error_response(request: Message, code: ErrorCode, text: str | None = None) -> Message:
    """The response to ``request`` with ``code`` in every row."""
    per_item = _PER_ITEM.get(type(request))
    if per_item is not None:
        return per_item(request, code, text)
    response_class: type[Message] = sys.modules[type(request).__module__].RESPONSE
    values: dict[str, Any] = {"error_code": code}
    if "error_message" in response_class.__dataclass_fields__:
        values["error_message"] = text
    return response_class(**values)
