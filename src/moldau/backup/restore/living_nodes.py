"""Finds brokers of the old cluster that still run. When the cluster is restored, these brokers stop."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import KafkaError

__all__ = ["living_brokers"]

_TIMEOUT_MS: Final = 2_000
_PLAINTEXT: Final = 0
"""The number of the security protocol PLAINTEXT. Listeners with another protocol require credentials."""
_AT_A_TIME: Final = 100


async def living_brokers(old: Iterable[Message], cluster_id: str, entropy: Entropy) -> list[str]:
    """The brokers in the old metadata that still respond with the cluster's id, as ``broker 1 at host:port``.
    Requests are sent only to listeners without encryption and authentication."""
    limits = ClientLimits(connect_timeout_ms=_TIMEOUT_MS, request_timeout_ms=_TIMEOUT_MS)
    client = RpcClient(entropy, client_id="restore", limits=limits)
    places = asyncio.Semaphore(_AT_A_TIME)

    async def asked(name: str, addresses: Sequence[tuple[str, int]]) -> list[str]:
        async with places:
            return [
                f"{name} at {host}:{port}"
                for host, port in addresses
                if await _cluster_id_at(client, host, port) == cluster_id
            ]

    try:
        found = await asyncio.gather(*(asked(*each) for each in _brokers(old)))
        return [name for names in found for name in names[:1]]
    finally:
        await client.close()


def _brokers(old: Iterable[Message]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    for record in old:
        if isinstance(record, r.RegisterBrokerRecord):
            plain = [each for each in record.end_points if each.security_protocol == _PLAINTEXT]
            yield f"broker {record.broker_id}", [(each.host, each.port) for each in plain]


async def _cluster_id_at(client: RpcClient, host: str, port: int) -> str | None:
    try:
        answer = await client.request(host, port, ApiKey.METADATA, None, MetadataRequest(topics=[]))
    except KafkaError:
        return None
    found: str | None = answer.cluster_id
    return found
