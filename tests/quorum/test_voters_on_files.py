"""The voters are a record of the log (KIP-853). A format writes it, snapshots contain it, and a restart reads
it again."""

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from voter_ids import voters_of

from moldau.cluster.folders.formatter import FormatRequest, format_storage, new_cluster_id
from moldau.cluster.folders.initial_voters import parse_initial_controllers
from moldau.cluster.folders.meta_properties import FormatError, read_meta_properties
from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER, CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.quorum.core.messages import RemoveVoterRequest, UpdateVoterRequest, UpgradeVersionRequest
from moldau.quorum.core.voters import LoggedVoters, Membership, ReplicaKey, Voter, VoterSet
from moldau.quorum.driver import QuorumDriver, QuorumIdentity
from moldau.quorum.state_store import QuorumStateStore
from moldau.quorum.voter_history import VoterHistory
from moldau.records.control import KRaftVersion, VoterEndpoint, build_control_batch
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.snapshots.snapshot_log import SnapshotLog

PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
ENDPOINT = VoterEndpoint("CONTROLLER", "host-1", 9093)
DIRECTORY = uuid.UUID(int=77)


def formatted(folder: Path, machine: Machine, **options: object) -> uuid.UUID:
    """Format a folder. Returns its directory id."""
    values = {"cluster_id": new_cluster_id(machine.entropy), "node_id": 1, **options}
    request = FormatRequest(log_dirs=[str(folder)], metadata_dir=str(folder), **values)  # type: ignore[arg-type]
    format_storage(machine.disk, machine.entropy, request, 1234)
    properties = read_meta_properties(machine.disk, str(folder))
    assert properties is not None
    assert properties.directory_id is not None
    return properties.directory_id


def driver_of(
    folder: Path, machine: Machine, own: Voter, static: VoterSet | None = None
) -> tuple[SnapshotLog, QuorumDriver]:
    path = str(folder / CLUSTER_METADATA_FOLDER)
    log, voters = SnapshotLog.open(machine, path, PARTITION), VoterSet([]) if static is None else static
    store = QuorumStateStore(machine.disk, path, voters)
    driver = QuorumDriver(
        machine, log, identity=QuorumIdentity(own.key, voters, Membership(own)), state_store=store
    )
    return log, driver


def test_a_standalone_folder_leads_and_keeps_its_voters(tmp_path: Path) -> None:
    async def work() -> None:
        machine = Machine.real()
        key = ReplicaKey(1, formatted(tmp_path, machine, standalone=ENDPOINT))
        own = Voter.at(key, (ENDPOINT,))
        log, driver = driver_of(tmp_path, machine, own)
        await driver.start()
        assert driver.is_leader
        assert driver.voters == VoterSet([own])
        # the records of the leader change, of kraft.version and of the voters come first
        assert await driver.append([b"a"]) == 3
        state = json.loads((tmp_path / CLUSTER_METADATA_FOLDER / "quorum-state").read_text())
        assert state["data_version"] == 1
        assert "currentVoters" not in state
        writer = driver.create_snapshot(driver.high_watermark, driver.epoch, 1234)
        assert writer is not None
        writer.append([b"a"])
        await writer.freeze()
        await driver.snapshot_created()
        await driver.append([b"b"])
        await driver.stop()
        log.close()
        log, driver = driver_of(tmp_path, machine, own)
        await driver.start()
        assert driver.is_leader
        assert driver.history.latest == LoggedVoters(VoterSet([own]), 3, 1)
        await driver.stop()
        log.close()
        machine.workers.close()

    asyncio.run(work())


def test_a_voter_whose_address_changes_corrects_its_record(tmp_path: Path) -> None:
    async def work() -> None:
        machine = Machine.real()
        key = ReplicaKey(1, formatted(tmp_path, machine, standalone=ENDPOINT))
        moved = Voter.at(key, (VoterEndpoint("CONTROLLER", "host-2", 9093),))
        log, driver = driver_of(tmp_path, machine, moved)
        await driver.start()
        await driver.append([b"a"])
        await driver.append([b"b"])
        assert driver.voters == VoterSet([moved])
        await driver.stop()
        log.close()
        machine.workers.close()

    asyncio.run(work())


def test_static_voters_become_a_record(tmp_path: Path) -> None:
    async def work() -> None:
        machine = Machine.real()
        key = ReplicaKey(1, formatted(tmp_path, machine))
        own, static = Voter.at(key, (ENDPOINT,)), VoterSet([Voter(ReplicaKey(1), "host-1", 9093)])
        log, driver = driver_of(tmp_path, machine, own, static)
        await driver.start()
        await driver.append([b"a"])
        refused = await driver.change_voters(RemoveVoterRequest(key=key))
        assert refused.error is ErrorCode.unsupported_version
        answer = await driver.change_voters(UpgradeVersionRequest(kraft_version=1, validate_only=True))
        assert (answer.error, driver.kraft_version) == (ErrorCode.none, 0)
        answer = await driver.change_voters(UpgradeVersionRequest(kraft_version=1))
        assert (answer.error, driver.kraft_version) == (ErrorCode.none, 1)
        stranger = Voter.at(ReplicaKey(5, DIRECTORY), (ENDPOINT,))
        answer = await driver.change_voters(UpdateVoterRequest(voter=stranger, epoch=driver.epoch))
        assert answer.error is ErrorCode.voter_not_found
        await driver.stop()
        log.close()
        # The file still contains the static voters. The voters of the log are used, even if other voters are
        # configured.
        for others in (voters_of(1, 2, 3), VoterSet([])):
            log, driver = driver_of(tmp_path, machine, own, others)
            await driver.start()
            assert driver.is_leader
            assert driver.voters == VoterSet([own])
            await driver.stop()
            log.close()
        machine.workers.close()

    asyncio.run(work())


def test_initial_controllers_are_told_apart_by_their_directories(tmp_path: Path) -> None:
    machine = Machine.real()
    text = "1@a:9093:AAAAAAAAAAAAAAAAAAAATQ,2@[::1]:9093:AAAAAAAAAAAAAAAAAAAATg"
    voters = parse_initial_controllers(text, "CONTROLLER")
    assert formatted(tmp_path / "one", machine, initial_voters=voters) == DIRECTORY
    with pytest.raises(FormatError, match=r"Node 3 is not one of the initial controllers \[1, 2\]"):
        formatted(tmp_path / "three", machine, node_id=3, initial_voters=voters)
    with pytest.raises(FormatError, match="ID@HOST:PORT:DIRECTORY_ID"):
        parse_initial_controllers("1@a:9093", "CONTROLLER")
    machine.workers.close()


def test_a_newer_kraft_version_stops_the_replica() -> None:
    batch = build_control_batch([KRaftVersion(2)], timestamp=0, base_offset=7)
    with pytest.raises(KafkaError, match=r"kraft.version 2 at offset 7.*run a newer one"):
        VoterHistory().read(batch)
