"""The voters in a log and its snapshot (KIP-853). The history has each VotersRecord with its offset, the
newest record last.

Voters are used from the moment when they are appended. Therefore the history follows the whole log and not
only the committed records. The driver reports each append, truncation and snapshot.
"""

from collections.abc import Iterable, Iterator

from moldau.quorum.core.voters import KRAFT_VERSION_MAX, LoggedVoters, ReplicaKey, Voter, VoterSet
from moldau.records import control
from moldau.records.batch import iter_headers
from moldau.records.record import iter_records
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.buffers import Buffer
from moldau.storage.snapshots.replicated_log import ReplicatedLog

READ_MAX_BYTES = 1024 * 1024


class VoterHistory:
    """The history of one replica's log."""

    def __init__(self) -> None:
        self._voters: list[LoggedVoters] = []
        self._versions: list[tuple[int, int]] = []
        """The offset of each KRaftVersionRecord, and the kraft.version in it."""

    @property
    def latest(self) -> LoggedVoters | None:
        """The last voters, whether they are committed or not; ``None`` while kraft.version is 0."""
        return self._voters[-1] if self._voters else None

    def at(self, end_offset: int) -> LoggedVoters | None:
        """Return the voters according to all records before ``end_offset``. This includes the voters in a
        snapshot that ends at ``end_offset``."""
        return next((known for known in reversed(self._voters) if known.offset < end_offset), None)

    def load(self, log: ReplicatedLog) -> None:
        """Read the latest snapshot and the whole log again."""
        self._voters, self._versions = [], []
        snapshot_id, offset = log.latest_snapshot_id(), log.start_offset
        reader = None if snapshot_id is None else log.open_snapshot(snapshot_id)
        if snapshot_id is not None and reader is not None:
            try:
                self._read_snapshot(reader.batches(), snapshot_id.offset - 1)
            finally:
                reader.close()
            offset = max(offset, snapshot_id.offset)
        while offset < log.end_offset:
            result = log.read(offset, READ_MAX_BYTES)
            if result.next_offset <= offset:
                break
            for view in result.views:
                self.read(view)
            offset = result.next_offset

    def read(self, batches: Buffer) -> None:
        """Add the voters of appended batches. Raises ``KafkaError`` for a kraft.version that this version of
        Moldau does not support."""
        for offset, record in control_records(batches):
            self._add(offset, record)

    def truncate(self, offset: int) -> None:
        """Remove the entries at ``offset`` and above."""
        self._voters = [known for known in self._voters if known.offset < offset]
        self._versions = [known for known in self._versions if known[0] < offset]

    def _read_snapshot(self, batches: Iterable[memoryview], offset: int) -> None:
        """Read the voters of a snapshot. They come before all data, in KIP-630's header and the records
        directly after it."""
        for view in batches:
            for position, header in iter_headers(view):
                if not header.is_control:
                    return
                for _, record in control_records(view[position : position + header.size_bytes]):
                    self._add(offset, record)

    def _add(self, offset: int, record: control.ControlRecord) -> None:
        if isinstance(record, control.KRaftVersion):
            if record.kraft_version > KRAFT_VERSION_MAX:
                raise KafkaError(
                    ErrorCode.unsupported_version,
                    f"the metadata log has kraft.version {record.kraft_version} at offset {offset}, and this"
                    f" version of Moldau knows it up to {KRAFT_VERSION_MAX}: run a newer one",
                )
            self._versions.append((offset, record.kraft_version))
        elif isinstance(record, control.RecordedVoters):
            previous = self._voters[-1].voters if self._voters else None
            level = self._versions[-1][1] if self._versions else 1
            self._voters.append(LoggedVoters(_voters_of(record), offset, level, previous))


def control_records(batches: Buffer) -> Iterator[tuple[int, control.ControlRecord]]:
    """Return the control records of whole batches, with their offsets. Control records of types that this
    version of Moldau does not know are left out."""
    view = memoryview(batches)
    for position, header in iter_headers(view):
        if header.is_control:
            for record in iter_records(view[position : position + header.size_bytes]):
                parsed = control.parse_control_record(record)
                if parsed is not None:
                    yield record.offset, parsed


def voters_record(voters: VoterSet) -> control.RecordedVoters:
    """The record that contains these voters."""
    return control.RecordedVoters(
        tuple(
            control.VotersRecordEntry(
                voter.key.id,
                voter.key.directory_id,
                voter.endpoints,
                voter.kraft_version_min,
                voter.kraft_version_max,
            )
            for voter in voters
        )
    )


def snapshot_records(logged: LoggedVoters) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of the control records that store the voters in a snapshot."""
    records: list[control.ControlRecord] = [
        control.KRaftVersion(logged.kraft_version),
        voters_record(logged.voters),
    ]
    return [(control.control_key(record), record.encode()) for record in records]


def _voters_of(record: control.RecordedVoters) -> VoterSet:
    try:
        return VoterSet(
            Voter.at(
                ReplicaKey(entry.voter_id, entry.directory_id),
                entry.endpoints,
                kraft_version_min=entry.min_supported_version,
                kraft_version_max=entry.max_supported_version,
            )
            for entry in record.voters
        )
    except ValueError as error:
        raise KafkaError(ErrorCode.corrupt_message, f"a record of voters is unusable: {error}") from error
