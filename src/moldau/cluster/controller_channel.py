"""How brokers reach the active controller: in process now, over the wire when clusters come."""

from typing import Any, Protocol

from moldau.protocol.schema import Message


class ControllerChannel(Protocol):
    """Sends requests to the active controller."""

    async def send(self, request: Message) -> Any:
        """The response that belongs to ``request``, once what it decided is committed.

        A request that is refused whole is answered, not raised, where its response has an error code.
        Raises ``KafkaError(not_controller)``, which is retriable, while no controller is known or when
        the outcome is not known because the controller lost its place.
        """
        ...
