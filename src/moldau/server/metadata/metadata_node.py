"""A node's replica of the cluster metadata. It consists of the quorum, the quorum's log, and the image that
the records of the log make.

A broker and a controller in the same process share a replica. The controller changes the metadata while this
node leads the quorum. The broker only reads them. A node that is not a voter follows the quorum as an
observer.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from moldau.cluster.clock_comparison import ClockComparison
from moldau.cluster.folders.folder_contents import BOOTSTRAP_FILE_NAME
from moldau.cluster.folders.meta_properties import FormatError
from moldau.cluster.image.registrations import FeatureRanges
from moldau.cluster.publisher import MetadataPublisher
from moldau.cluster.quorum_log import QuorumMetadataLog
from moldau.cluster.snapshot_schedule import SnapshotGenerator
from moldau.config.broker import BrokerConfig
from moldau.config.listeners import ConfiguredVoter
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.quorum.core.voters import NO_DIRECTORY, ReplicaKey, Voter, VoterSet
from moldau.quorum.driver import QuorumDriver, QuorumIdentity
from moldau.quorum.state_store import FILE_NAME as QUORUM_STATE
from moldau.quorum.state_store import QuorumStateStore
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.files.disk import Disk
from moldau.runtime.machine import Machine
from moldau.server import settings
from moldau.server.bound_listeners import BoundListeners
from moldau.server.identity import Identity
from moldau.server.metadata.lost_records_check import (
    check_broker_epochs_are_known,
    check_epochs_are_known,
    check_partitions_are_known,
    is_single_voter,
)
from moldau.server.metadata.membership import membership_of
from moldau.server.metadata.metadata_view import QuorumView
from moldau.server.metadata.quorum_peers import RECONNECT_LIMITS, QuorumPeers
from moldau.server.metadata.topic_configs import EffectiveConfigs
from moldau.server.metadata.voter_check import VoterCheck
from moldau.storage.critical_logs.integrity_check import DURABLE_OFFSET, DamagedLogError, IntegrityRules
from moldau.storage.critical_logs.inventory import METADATA_LOG
from moldau.storage.critical_logs.recovery_report import Repair, RepairKind
from moldau.storage.folders.file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX
from moldau.storage.log_manager import LogManager
from moldau.storage.snapshots.snapshot import snapshot_of
from moldau.storage.snapshots.snapshot_log import SnapshotLog

CURRENT_TIMEOUT_S = 30.0


class MetadataNode:
    """Opens the metadata log and runs this node's replica of the quorum on this log.

    The subsystems of a broker use it as a :class:`moldau.server.metadata.metadata_view.MetadataView`.

    Use it in this order: construct it, add listeners to :attr:`log`, ``await start()``, ``await stop()``.
    """

    def __init__(
        self,
        machine: Machine,
        config: BrokerConfig,
        identity: Identity,
        on_fault: Callable[[str], None],
        logs: LogManager,
        listeners: BoundListeners,
        features: FeatureRanges = settings.SUPPORTED_FEATURES,
    ) -> None:
        """Open the log. ``logs`` manages the folder that contains the log, and is open. ``listeners`` are
        this node's listeners. If the cluster has a feature level that ``features`` do not contain, the node
        stops.

        Raises ``FormatError`` for a folder that is not formatted. Also raises ``DamagedLogError`` and
        ``QuorumStateError``.
        """
        folder = f"{config.metadata_log_dir}/{CLUSTER_METADATA_FOLDER}"
        self.identity = identity
        self._listeners = listeners
        self._controller_listeners = [endpoint.name for endpoint in config.controller_listeners]
        self._config = config
        self._logs = logs
        self._stored = _open_log(machine, folder, config, logs)
        voters = VoterSet(
            Voter(ReplicaKey(voter.node_id), voter.host, voter.port) for voter in config.quorum_voters
        )
        self._client = RpcClient(
            machine.entropy, client_id=f"quorum-{identity.node_id}", limits=RECONNECT_LIMITS
        )
        self.check_voter = VoterCheck(config, self._client)
        self._peers = QuorumPeers(lambda node_id: self.driver.addresses.find(node_id), self._client)
        directory_id = identity.directories.get(config.metadata_log_dir, NO_DIRECTORY)
        self.driver = QuorumDriver(
            machine,
            self._stored,
            identity=QuorumIdentity(
                ReplicaKey(identity.node_id, directory_id), voters, membership_of(config, directory_id)
            ),
            state_store=QuorumStateStore(machine.disk, folder, voters),
            sender=self._peers,
            config=settings.quorum_config(config, identity.cluster_id),
            on_fatal=lambda error: on_fault(f"the metadata quorum has failed: {error}"),
        )
        self.log = QuorumMetadataLog(self.driver, self._stored, identity.node_id)
        self.publisher = MetadataPublisher(lambda error: on_fault(str(error)), features, folder=folder)
        self.configs = EffectiveConfigs(config, identity.node_id, lambda: self.publisher.image)
        self._snapshots = SnapshotGenerator(
            self.log,
            self.publisher,
            bytes_between=config.integer("metadata.log.max.record.bytes.between.snapshots"),
            interval_ms=config.integer("metadata.log.max.snapshot.interval.ms"),
        )
        self.log.add_listener(self.publisher)
        self.log.add_listener(self._snapshots)
        self.clock = ClockComparison(
            machine.clock.now_ms, _elapsed_s, config.integer("diskless.coordinator.clock.skew.max.ms")
        )
        self.log.add_listener(self.clock)

    @property
    def quorum(self) -> QuorumView:
        """The quorum's state, which other parts of the node may read."""
        return self.driver

    async def until_current(self) -> None:
        """Wait until this node's image has every record that was committed at the time of the call.

        This node gets the end of the committed records from the quorum's leader. Raises ``KafkaError`` while
        the leader does not answer, and ``TimeoutError`` if the records do not arrive in time.
        """
        if self.driver.is_leader:
            committed_end = self.driver.describe().high_watermark
        else:
            committed_end = await self._peers.high_watermark(self.driver.leader_id)
        if committed_end < 0:
            raise KafkaError(ErrorCode.not_controller, "the quorum has committed nothing in this epoch yet")
        async with asyncio.timeout(CURRENT_TIMEOUT_S):
            await self.log.until_applied(committed_end)

    def voters(self) -> list[ConfiguredVoter]:
        """The voters with their addresses. A port 0 is replaced by the port that the system assigned."""
        bound = next(filter(None, map(self._listeners.find, self._controller_listeners)), None)
        voters = (ConfiguredVoter(each.key.id, each.host, each.port) for each in self.driver.voters)
        return [
            replace(voter, port=bound.port)
            if voter.port == 0 and voter.node_id == self.identity.node_id and bound is not None
            else voter
            for voter in voters
        ]

    async def start(self) -> None:
        """Replay the metadata. If this node is a single voter, it leads the quorum when this method returns.

        Raises ``FormatError`` for a controller with static voters that are not configured. Raises
        ``DamagedLogError`` when a single voter's metadata are older than its logs.
        """
        self.driver.history.load(self._stored)
        is_told = self._config.quorum_voters or self.driver.history.latest is not None
        if self._config.is_controller and not is_told and self._stored.end_offset:
            raise FormatError(
                "controller.quorum.voters must be set: the metadata of cluster"
                f" {self.identity.cluster_id} has kraft.version 0, whose voters are static. Raise it to 1"
                " before the key is left out."
            )
        end_offset = self._stored.end_offset
        await self.driver.start()
        if is_single_voter(self._config):
            # If the quorum fails, or if a record cannot be applied, this wait would never end. It therefore
            # has a time-out. In both cases another part of the node stops the node.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CURRENT_TIMEOUT_S):
                    await self.log.until_applied(end_offset)
            if not self.publisher.is_faulty:
                check_epochs_are_known(self._stored.log.directory, self.publisher.image, self._logs)

    async def stop(self) -> None:
        """Leave the quorum and close the log."""
        await self._snapshots.close()
        await self.driver.stop()
        await self._client.close()
        self._stored.close()


def _elapsed_s() -> float:
    return asyncio.get_running_loop().time()


def _open_log(machine: Machine, folder: str, config: BrokerConfig, logs: LogManager) -> SnapshotLog:
    """Check that the metadata log has lost no records. Raises ``FormatError`` and ``DamagedLogError``."""
    if not machine.disk.is_dir(folder):
        # Formatting creates this folder. A start without the folder would create a new cluster over the data
        # of an old cluster.
        name = folder.rpartition("/")[2]
        others = (path.rstrip("/") for path in config.log_dirs)
        found = next((path for path in others if machine.disk.is_dir(f"{path}/{name}")), None)
        advice = (
            "Restore it from a backup, or see 'Damaged files' in docs/operations.md."
            if found is None
            else f"{found}/{name} is there: was log.dirs put in another order? Set metadata.log.dir={found}."
        )
        raise FormatError(
            f"{folder} is missing, though {config.metadata_log_dir} is formatted. Nothing was changed."
            f" {advice}"
        )
    if not any(name.endswith((SNAPSHOT_SUFFIX, LOG_SUFFIX)) for name in machine.disk.list(folder)):
        # Formatting writes a snapshot, so a folder without a snapshot has lost files. A voter that has lost
        # its log and its vote could vote for a candidate without all committed records.
        raise DamagedLogError(
            f"{folder} holds neither a snapshot nor a log, though {config.metadata_log_dir} is formatted."
            " Nothing was changed. Restore it from a backup, or see 'Damaged files' in docs/operations.md."
        )
    _check_vote(machine.disk, folder)
    is_only_voter = is_single_voter(config)
    if is_only_voter:
        check_partitions_are_known(machine.disk, folder, logs)
    written_offset, written_by = logs.metadata_watermark.stored()
    log = SnapshotLog.open(
        machine,
        folder,
        METADATA_LOG,
        settings.metadata_log_config(config),
        integrity=IntegrityRules(
            same_boot=all(directory.same_boot for directory in logs.directories),
            written_offset=written_offset,
            written_by=written_by,
            has_snapshots=True,
            is_only_replica=is_only_voter,
        ),
        report=logs.report,
    )
    if config.is_controller:
        _check_records(folder, log, logs)
    _check_parts(machine.disk, folder, log, logs, is_only_voter=is_only_voter)
    if is_only_voter:
        try:
            check_broker_epochs_are_known(folder, log.end_offset, logs)
        except DamagedLogError:
            log.close()
            raise
    logs.metadata_watermark.follow(lambda: min(log.high_watermark, log.flushed_offset))
    return log


def _check_records(folder: str, log: SnapshotLog, logs: LogManager) -> None:
    """Raise ``DamagedLogError`` when a controller's log is empty beside the records of topics.

    A broker without the controller role does not sync its metadata log. If a loss of power has taken the log,
    the broker gets the metadata from the controllers again.
    """
    if log.end_offset or not len(list(logs)):
        return
    log.close()
    first = min(partition.directory for partition in logs)
    raise DamagedLogError(
        f"{folder} holds no metadata, but {first} holds records of a topic. Nothing was changed. Restore the"
        " metadata log from a backup, or see 'Damaged files' in docs/operations.md."
    )


def _check_parts(disk: Disk, folder: str, log: SnapshotLog, logs: LogManager, *, is_only_voter: bool) -> None:
    """If the log has records but other files in its folder are missing, report the missing files. If the file
    with the vote (``quorum-state``) is missing and there are several voters, raise ``DamagedLogError``."""
    if not log.end_offset:
        return
    if not disk.exists(f"{folder}/{QUORUM_STATE}"):
        if not is_only_voter:
            log.close()
            raise DamagedLogError(
                f"{folder}/{QUORUM_STATE} is missing beside a log with records: the node may have voted, and"
                " must not vote twice. Restore the file from a backup, or see 'Damaged files' in"
                " docs/operations.md."
            )
        reason = "was missing beside a log with records; it is created again"
        logs.report.add(Repair(RepairKind.REBUILT, f"{folder}/{QUORUM_STATE}", reason))
    if not log.start_offset and log.latest_snapshot_id() is None:
        reason = (
            "was missing; the feature levels in it, and the other values with which the folder was formatted,"
            " are created again with their defaults"
        )
        logs.report.add(Repair(RepairKind.REBUILT, f"{folder}/{BOOTSTRAP_FILE_NAME}", reason))


def _check_vote(disk: Disk, folder: str) -> None:
    """Raise ``DamagedLogError`` when the node has taken part in the quorum but its log is missing.

    A node creates its log before it first votes. Later, the log can be without a segment only if a snapshot
    has replaced the whole log.
    """
    names = disk.list(folder)
    is_replaced = any(found.offset for name in names if (found := snapshot_of(name)) is not None)
    has_log = any(name.endswith(LOG_SUFFIX) for name in names) or DURABLE_OFFSET in names
    if QUORUM_STATE in names and not has_log and not is_replaced:
        raise DamagedLogError(
            f"{folder} holds no segment, though {QUORUM_STATE} says that this node has taken part in the"
            " quorum. Nothing was changed. Restore the folder from a backup, or see 'Damaged files' in"
            " docs/operations.md."
        )
