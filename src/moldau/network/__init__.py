"""Listeners, connections and the RPC client. A connection dispatches requests in order and sends the
responses in the same order."""

from moldau.network.client.rpc_client import ClientLimits, RpcClient
from moldau.network.context import (
    ANONYMOUS,
    Answer,
    Buffers,
    ConnectionContext,
    DispatchRequest,
    Principal,
    RequestContext,
)
from moldau.network.http import HttpAnswer, HttpServer
from moldau.network.limits import Listener, NetworkCounters, NetworkLimits
from moldau.network.server import SocketServer

__all__ = [
    "ANONYMOUS",
    "Answer",
    "Buffers",
    "ClientLimits",
    "ConnectionContext",
    "DispatchRequest",
    "HttpAnswer",
    "HttpServer",
    "Listener",
    "NetworkCounters",
    "NetworkLimits",
    "Principal",
    "RequestContext",
    "RpcClient",
    "SocketServer",
]
