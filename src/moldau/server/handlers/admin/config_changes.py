"""AlterConfigs and IncrementalAlterConfigs. This broker checks the requests, and the controller decides.

The broker refuses requests that are invalid in every state of the cluster. It changes the levels of its own
loggers. It forwards all other changes. A response has an entry for each resource of the request, in the order
of the request.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.decisions.configs import ConfigOperation
from moldau.cluster.image.image import ResourceType
from moldau.network import authorization
from moldau.network.authorization import CLUSTER_NAME, Authorizer
from moldau.network.context import RequestContext
from moldau.network.served import Handler
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import alter_configs as legacy
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.observing import loggers
from moldau.server.requests.forwarding import decided_by, forward

_KEPT: Final = frozenset(
    {ResourceType.TOPIC, ResourceType.BROKER, ResourceType.CLIENT_METRICS, ResourceType.GROUP}
)

Resource: TypeAlias = incremental.AlterConfigsResource | legacy.AlterConfigsResource
ConfigOutcome: TypeAlias = tuple[ErrorCode, str | None]


class ConfigChangeHandlers:
    """Handlers of requests that change configurations."""

    def __init__(self, local_id: int, controller: ControllerChannel, authorizer: Authorizer) -> None:
        self._local_id = local_id
        self._controller = controller
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.ALTER_CONFIGS: decided_by(self.alter, ApiKey.ALTER_CONFIGS),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: decided_by(
                self.incremental_alter, ApiKey.INCREMENTAL_ALTER_CONFIGS
            ),
        }

    async def incremental_alter(
        self, context: RequestContext, request: incremental.IncrementalAlterConfigsRequest
    ) -> incremental.IncrementalAlterConfigsResponse:
        def check(resource: incremental.AlterConfigsResource) -> bool:
            needs_values = [row for row in resource.configs if row.config_operation != ConfigOperation.DELETE]
            self._check(resource, [row.name for row in needs_values if row.value is None])
            if resource.resource_type != ResourceType.BROKER_LOGGER:
                return False
            self._change_loggers(context, resource, request.validate_only)
            return True

        rows = await self._answer(context, request, check, incremental.AlterConfigsResourceResponse)
        return incremental.IncrementalAlterConfigsResponse(responses=rows)

    async def alter(
        self, context: RequestContext, request: legacy.AlterConfigsRequest
    ) -> legacy.AlterConfigsResponse:
        def check(resource: legacy.AlterConfigsResource) -> bool:
            self._check(resource, [row.name for row in resource.configs if row.value is None])
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                raise _unknown(resource.resource_type)
            return False

        rows = await self._answer(context, request, check, legacy.AlterConfigsResourceResponse)
        return legacy.AlterConfigsResponse(responses=rows)

    async def _answer(
        self,
        context: RequestContext,
        request: Any,
        check: Callable[[Any], bool],
        row: Callable[..., Any],
    ) -> Sequence[Any]:
        """Answer a request that changes configs. ``check`` is called for each resource. It raises an error to
        refuse the change of the resource, returns True if it has already made the change, or returns False if
        the controller must decide on the change. ``row`` makes the response's entry for a resource."""
        counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
        checked: dict[tuple[int, str], ConfigOutcome] = {}
        passed_on: list[Resource] = []
        for resource in request.resources:
            key = (resource.resource_type, resource.resource_name)
            try:
                if counts[key] > 1:
                    raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
                if check(resource):
                    checked[key] = (ErrorCode.none, None)
                else:
                    passed_on.append(resource)
            except KafkaError as error:
                checked[key] = (error.code, error.message)
        if passed_on:
            response = await forward(self._controller, context, replace(request, resources=passed_on))
            for decided in response.responses:
                key = (decided.resource_type, decided.resource_name)
                checked[key] = (decided.error_code, decided.error_message)
        return [
            row(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
            for code, message in (checked[resource.resource_type, resource.resource_name],)
        ]

    def _check(self, resource: Resource, nulls: Sequence[str]) -> None:
        """Check a request without the cluster's state. Raises ``KafkaError(invalid_request)`` if the request
        is not valid."""
        names = [row.name for row in resource.configs]
        if len(set(names)) != len(names):
            raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
        if nulls:
            raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(nulls)}")
        kind, name = resource.resource_type, resource.resource_name
        if kind == ResourceType.BROKER and name:
            self._check_is_local(name, "broker")
        elif kind not in _KEPT and kind != ResourceType.BROKER_LOGGER:
            raise _unknown(kind)

    def _check_is_local(self, name: str, what: str) -> None:
        if not name.removeprefix("-").isdecimal():
            raise KafkaError(ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}")
        if int(name) != self._local_id:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Unexpected {what} id. Expected {self._local_id}, but received {name}",
            )

    def _change_loggers(
        self, context: RequestContext, resource: incremental.AlterConfigsResource, validate_only: bool
    ) -> None:
        if not self._authorizer.allows(
            context,
            authorization.AclOperation.ALTER_CONFIGS,
            authorization.AclResourceType.CLUSTER,
            CLUSTER_NAME,
        ):
            raise KafkaError(ErrorCode.cluster_authorization_failed)
        self._check_is_local(resource.resource_name, "node")
        loggers.check(resource.configs)
        if not validate_only:
            loggers.apply(resource.configs)


def _unknown(kind: int) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, f"Unknown resource type {kind}")
