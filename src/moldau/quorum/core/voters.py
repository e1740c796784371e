"""The voters of a quorum.

Voters are static for now (``controller.quorum.voters``). Everything asks a :class:`VoterSet` value
and replicas are named by id *and* directory id, so that voters which change with the log (KIP-853)
only have to hand the core a new value.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

NO_DIRECTORY = uuid.UUID(int=0)
"""Kafka's zero UUID: the directory is unknown, or the voters are static."""


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """A replica: node id, and the log directory it stands on (KIP-853)."""

    id: int
    directory_id: uuid.UUID = NO_DIRECTORY

    def is_same_replica(self, other: "ReplicaKey") -> bool:
        """Same id, and directories that do not contradict each other (the zero UUID matches any)."""
        if self.id != other.id:
            return False
        either_unknown = NO_DIRECTORY in (self.directory_id, other.directory_id)
        return either_unknown or self.directory_id == other.directory_id


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter and where to reach it."""

    key: ReplicaKey
    host: str = ""
    port: int = 0


class VoterSet:
    """An immutable set of voters."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters: Mapping[int, Voter] = {
            voter.key.id: voter for voter in sorted(voters, key=lambda voter: voter.key.id)
        }

    @staticmethod
    def of_ids(*ids: int) -> "VoterSet":
        """Voters without addresses: a lone node, and tests."""
        return VoterSet(Voter(ReplicaKey(voter_id)) for voter_id in ids)

    @staticmethod
    def parse(text: str) -> "VoterSet":
        """Read ``controller.quorum.voters``: ``1@host:9093,2@[::1]:9093``. Raises ``ValueError``."""
        voters = [_parse_voter(part.strip()) for part in text.split(",") if part.strip()]
        if len({voter.key.id for voter in voters}) != len(voters):
            raise ValueError(f"a voter id is given twice in {text!r}")
        return VoterSet(voters)

    @property
    def ids(self) -> tuple[int, ...]:
        """Node ids in rising order."""
        return tuple(self._voters)

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self._voters) // 2 + 1

    def others(self, local_id: int) -> tuple[int, ...]:
        return tuple(voter_id for voter_id in self._voters if voter_id != local_id)

    def get(self, node_id: int) -> Voter | None:
        return self._voters.get(node_id)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._voters

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(map(str, self._voters))})"


def _parse_voter(text: str) -> Voter:
    voter_id, at, address = text.partition("@")
    host, colon, port = address.rpartition(":")
    if not (at and colon and host and voter_id.isdecimal() and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"expected ID@HOST:PORT, found {text!r}")
    return Voter(ReplicaKey(int(voter_id)), host.strip("[]"), int(port))
