"""Requests to a node over the wire, each on its own connection, for synchronous tests."""

import asyncio
from typing import Any

from plain_requests import PATIENT

from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.schema import Message
from moldau.runtime import SystemEntropy
from moldau.testing import Node


def ask(node: Node, message: Message, version: int | None = None) -> Any:
    """The response to a request, in a given version or in the highest version."""
    return ask_all(node, [(message, version)])[0]


def ask_all(node: Node, requests: list[tuple[Message, int | None]]) -> list[Any]:
    """The responses to several requests on one connection."""
    host, _, port = node.bootstrap_servers.rpartition(":")

    async def run() -> list[Any]:
        client = RpcClient(SystemEntropy(), client_id="test", limits=PATIENT)
        try:
            return [
                await client.request(host, int(port), type(message).API_KEY, version, message)
                for message, version in requests
            ]
        finally:
            await client.close()

    return asyncio.run(run())
