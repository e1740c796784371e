"""The voters of a quorum.

Voters are static (``controller.quorum.voters``, kraft.version 0), or they are in a record of the log
(KIP-853, kraft.version 1). All code uses the value :class:`VoterSet`, and identifies replicas by id *and*
directory id.
"""

import base64
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from moldau.records.control import VoterEndpoint

NO_DIRECTORY = uuid.UUID(int=0)
"""Kafka's zero UUID: the directory is unknown, or the voters are static."""


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """A replica, identified by its node id and the id of its log directory (KIP-853)."""

    id: int
    directory_id: uuid.UUID = NO_DIRECTORY

    def is_same_replica(self, other: "ReplicaKey") -> bool:
        """Whether the node ids are equal and the directory ids match. The zero UUID matches every directory
        id."""
        if self.id != other.id:
            return False
        either_unknown = NO_DIRECTORY in (self.directory_id, other.directory_id)
        return either_unknown or self.directory_id == other.directory_id

    @property
    def directory_text(self) -> str:
        """The directory id as in meta.properties: URL-safe base64 without padding."""
        return directory_text(self.directory_id)


def directory_text(directory_id: uuid.UUID) -> str:
    """Return a directory id as users know it from meta.properties and from the commands."""
    return base64.urlsafe_b64encode(directory_id.bytes).decode().rstrip("=")


KRAFT_VERSION_FEATURE = "kraft.version"
KRAFT_VERSION_MAX = 1
"""The newest kraft.version that this version of Moldau supports: dynamic voters."""


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter and its address."""

    key: ReplicaKey
    host: str = ""
    port: int = 0
    listener: str = ""
    """Name of the listener at ``host`` and ``port``."""
    other_endpoints: tuple[VoterEndpoint, ...] = ()
    """The voter's other listeners, as in the voter's record."""
    kraft_version_min: int = 0
    kraft_version_max: int = KRAFT_VERSION_MAX

    def supports(self, kraft_version: int) -> bool:
        return self.kraft_version_min <= kraft_version <= self.kraft_version_max

    @property
    def endpoints(self) -> tuple[VoterEndpoint, ...]:
        return (VoterEndpoint(self.listener, self.host, self.port), *self.other_endpoints)

    @staticmethod
    def at(
        key: ReplicaKey,
        endpoints: tuple[VoterEndpoint, ...],
        *,
        kraft_version_min: int = 0,
        kraft_version_max: int = KRAFT_VERSION_MAX,
    ) -> "Voter":
        """Return a voter that has the address of its first endpoint. Raises ``ValueError`` if there are no
        endpoints."""
        if not endpoints:
            raise ValueError(f"voter {key.id} has no endpoint")
        first, *others = endpoints
        return Voter(
            key,
            first.host,
            first.port,
            first.name,
            tuple(others),
            kraft_version_min,
            kraft_version_max,
        )


class VoterSet:
    """An immutable set of voters."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters: Mapping[int, Voter] = {
            voter.key.id: voter for voter in sorted(voters, key=lambda voter: voter.key.id)
        }

    @staticmethod
    def parse(text: str) -> "VoterSet":
        """Parse ``controller.quorum.voters``: ``1@host:9093,2@[::1]:9093``. Raises ``ValueError`` if the
        value is malformed."""
        voters = [_parse_voter(part.strip()) for part in text.split(",") if part.strip()]
        if len({voter.key.id for voter in voters}) != len(voters):
            raise ValueError(f"a voter id is given twice in {text!r}")
        return VoterSet(voters)

    @property
    def ids(self) -> tuple[int, ...]:
        """Node ids in ascending order."""
        return tuple(self._voters)

    @property
    def majority(self) -> int:
        """Number of voters that form a majority."""
        return len(self._voters) // 2 + 1

    def others(self, local_id: int) -> tuple[int, ...]:
        return tuple(voter_id for voter_id in self._voters if voter_id != local_id)

    def has(self, key: ReplicaKey) -> bool:
        """Whether this replica is a voter. The directories of the replica and of the voter must be equal,
        unless one of them is unknown."""
        voter = self._voters.get(key.id)
        return voter is not None and voter.key.is_same_replica(key)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """Return the set with this voter added. If the set has an entry with the voter's id, the voter
        replaces this entry."""
        return VoterSet([*(known for known in self if known.key.id != voter.key.id), voter])

    def without(self, node_id: int) -> "VoterSet":
        return VoterSet(voter for voter in self if voter.key.id != node_id)

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


@dataclass(frozen=True, slots=True)
class LoggedVoters:
    """The voters in the last record of voters in a log (KIP-853). The record may be committed or not."""

    voters: VoterSet
    offset: int
    """Offset of the record. If the voters come from a snapshot, this is the end offset of the snapshot minus
    one."""
    kraft_version: int = 1
    previous: VoterSet | None = None
    """The set of voters before this record, if the log still contains it."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The role of a node in a quorum with dynamic voters."""

    own: Voter | None = None
    """A controller's own entry in the set of voters; ``None`` for a node that can never be a voter."""
    bootstrap_ids: tuple[int, ...] = ()
    """The ids of the servers in ``controller.quorum.bootstrap.servers``. They are negative numbers, which no
    node has."""
    auto_join: bool = False
    """``controller.quorum.auto.join.enable``: whether a controller that is not a voter asks to become a
    voter."""


def _parse_voter(text: str) -> Voter:
    voter_id, at, address = text.partition("@")
    host, colon, port = address.rpartition(":")
    if not (at and colon and host and voter_id.isdecimal() and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"expected ID@HOST:PORT, found {text!r}")
    return Voter(ReplicaKey(int(voter_id)), host.strip("[]"), int(port))
