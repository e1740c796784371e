"""The addresses of a quorum's nodes. An address comes from the set of voters, from the configured bootstrap
servers, or from a message in which another node named its leader."""

from collections.abc import Callable, Iterable, Sequence

from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet


class QuorumAddresses:
    """Finds the addresses of nodes by id. If the set of voters has an address for a node, this address is
    used, because it comes from a record of the log.

    The servers of ``controller.quorum.bootstrap.servers`` have the ids -2, -3, … as in Kafka, because their
    node ids are unknown.
    """

    def __init__(
        self, voters: Callable[[], VoterSet], bootstrap_servers: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._voters = voters
        self._bootstrap = {
            -2 - place: Voter(ReplicaKey(-2 - place), host, port)
            for place, (host, port) in enumerate(bootstrap_servers)
        }
        self._heard: dict[int, Voter] = {}

    @property
    def bootstrap_ids(self) -> tuple[int, ...]:
        return tuple(self._bootstrap)

    def bootstrap_servers(self) -> dict[int, str]:
        """``HOST:PORT`` of the bootstrap servers, by id."""
        return {node_id: f"{each.host}:{each.port}" for node_id, each in self._bootstrap.items()}

    def find(self, node_id: int) -> Voter | None:
        """The node with its address; ``None`` while the address is unknown."""
        voter = self._voters().get(node_id)
        if voter is not None and voter.host:
            return voter
        return self._bootstrap.get(node_id) or self._heard.get(node_id)

    def heard(self, endpoints: Iterable[tuple[int, str, int]]) -> None:
        """Store addresses from a message of another replica. Each item has a node's id, its host and its
        port."""
        for node_id, host, port in endpoints:
            if node_id >= 0 and host and 0 < port < 65536:
                self._heard[node_id] = Voter(ReplicaKey(node_id), host, port)
