"""A controller's own entry among the voters of the metadata quorum (KIP-853)."""

import uuid
from dataclasses import replace

from moldau.config.broker import BrokerConfig
from moldau.config.listeners import ListenerEndpoint
from moldau.quorum.core.voters import Membership, ReplicaKey, Voter
from moldau.records.control import VoterEndpoint


def membership_of(config: BrokerConfig, directory_id: uuid.UUID) -> Membership:
    """Return this node's role in the quorum.

    ``directory_id`` is the id of the folder that contains the metadata log. The result has no own entry if
    the node is not a controller, or if the controller's listener has no fixed port, because such a node
    cannot become a voter.
    """
    if not config.is_controller:
        return Membership()
    endpoints = controller_endpoints(config)
    if not endpoints or any(not endpoint.port for endpoint in endpoints):
        return Membership()
    return Membership(
        Voter.at(ReplicaKey(config.node_id, directory_id), endpoints),
        auto_join=config.flag("controller.quorum.auto.join.enable"),
    )


def controller_endpoints(config: BrokerConfig) -> tuple[VoterEndpoint, ...]:
    """Return this controller's addresses for other nodes, in the order of ``controller.listener.names``."""
    by_name = {endpoint.name: endpoint for endpoint in config.controller_listeners}
    by_name |= {endpoint.name: endpoint for endpoint in config.advertised_controller_listeners}
    named = [by_name[name] for name in config.controller_listener_names if name in by_name]
    return tuple(_reachable(endpoint, config) for endpoint in named)


def _reachable(endpoint: ListenerEndpoint, config: BrokerConfig) -> VoterEndpoint:
    """Return the endpoint, with an address that other nodes can reach. If the listener is on all interfaces,
    the host comes from ``controller.quorum.voters``. If there is no such entry, the host is the loopback
    address."""
    if not endpoint.host:
        static = next((each for each in config.quorum_voters if each.node_id == config.node_id), None)
        endpoint = replace(endpoint, host=static.host if static is not None else "127.0.0.1")
    return VoterEndpoint(endpoint.name, endpoint.host, endpoint.port)
