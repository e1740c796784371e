"""The nodes that ``moldau storage restore`` makes, from their properties files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from moldau.backup.cut_format import ClusterCut
from moldau.backup.restore.folders import NewCluster, NewNode
from moldau.cli.errors import CommandError
from moldau.cluster.folders.formatter import new_directory_id
from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.config.broker import BrokerConfig
from moldau.objects.storage import StorageError
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.runtime import Machine
from moldau.server.metadata.membership import controller_endpoints
from moldau.server.subsystems.tiered import settings as tiered_settings

__all__ = ["STORE", "check_nodes", "naming_store", "new_cluster", "tier_problem", "with_store"]

STORE: Final = "diskless.storage.url"
_TIER_PARTITIONS = "remote.log.metadata.topic.num.partitions"


def check_nodes(configs: Sequence[BrokerConfig]) -> None:
    """Raise :class:`CommandError` unless the configurations belong to nodes of one cluster."""
    ids = [config.node_id for config in configs]
    doubled = sorted({each for each in ids if ids.count(each) > 1})
    if doubled:
        raise CommandError(f"node.id {doubled[0]} is in several of the files: each node has its own")
    stores = {config.text(STORE) for config in configs if config.is_broker}
    if len(stores) > 1:
        raise CommandError(f"{STORE} differs between the files: {', '.join(sorted(stores))}")
    controllers = [config for config in configs if config.is_controller]
    if not controllers or not stores:
        raise CommandError(
            "a restored cluster needs a controller and a broker: give one file with"
            " process.roles=broker,controller, or the files of several nodes, each with --config"
        )
    expected = sorted(config.node_id for config in controllers)
    for config in configs:
        voters = sorted(voter.node_id for voter in config.quorum_voters)
        if bool(voters) != bool(configs[0].quorum_voters):
            raise CommandError("controller.quorum.voters must be in all files, or in none")
        if voters and voters != expected:
            raise CommandError(
                f"controller.quorum.voters of node {config.node_id} names {voters}, and the files of the"
                f" controllers {expected} are given: all controllers are restored together. Without the key,"
                " others can be added afterwards with `moldau quorum add`"
            )


@contextmanager
def naming_store(config: BrokerConfig) -> Iterator[None]:
    """Errors of the store, for example that its bucket does not exist, also name its URL. Raises
    ``StorageError``."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{config.text(STORE)}: {error}", transient=error.transient) from error


def with_store(config: BrokerConfig, url: str) -> BrokerConfig:
    """The configuration with another object store. If the remote tier has the same URL as the store, it gets
    the new URL, too, because the other store is a copy of both."""
    url_of_tier = f"{config.text('remote.log.storage.manager.impl.prefix')}url"
    changed = {STORE: url}
    if url_of_tier in config.static and config.static[url_of_tier] == config.optional_text(STORE):
        changed[url_of_tier] = url
    return BrokerConfig.from_properties(config.static, changed)


def tier_problem(configs: Sequence[BrokerConfig], cut: ClusterCut) -> str | None:
    """The reason why the restored brokers could not find remote segments; None if they can find them."""
    count = sum(log.topic == REMOTE_LOG_METADATA_TOPIC for log in cut.logs.values())
    if not count:
        return None
    for config in configs:
        if not config.is_broker or not tiered_settings.is_enabled(config):
            continue
        if (wanted := tiered_settings.metadata_topic(config).partition_count) != count:
            return (
                f"{_TIER_PARTITIONS} of node {config.node_id} is {wanted}, but the saved"
                f" {REMOTE_LOG_METADATA_TOPIC} has {count} partitions: without {_TIER_PARTITIONS}={count},"
                " the node cannot read remote segments"
            )
    return None


def new_cluster(
    configs: Sequence[BrokerConfig], cluster_id: str, machine: Machine, into: Path | None
) -> NewCluster:
    """The nodes of checked configurations. With ``into``, their folders are below that folder and not in
    ``log.dirs``. The user then moves them to other machines."""
    is_static = bool(configs[0].quorum_voters)
    voters = [Voter(ReplicaKey(voter.node_id), voter.host, voter.port) for voter in configs[0].quorum_voters]
    return NewCluster(
        cluster_id=cluster_id,
        nodes=[_node(config, machine, into, is_static=is_static) for config in configs],
        static_voters=VoterSet(voters) if is_static else None,
    )


def _node(config: BrokerConfig, machine: Machine, into: Path | None, *, is_static: bool) -> NewNode:
    main = config.metadata_log_dir
    if main not in config.log_dirs:
        raise CommandError(f"metadata.log.dir {main} of node {config.node_id} is not one of its log.dirs")
    others = [each for each in config.log_dirs if each != main]
    if into is not None:
        # Folder 0 is the folder of the metadata. The other folders follow in the order of log.dirs.
        base = f"{into.resolve()}/node-{config.node_id}"
        main, others = f"{base}/0", [f"{base}/{number}" for number, _ in enumerate(others, 1)]
    return NewNode(
        node_id=config.node_id,
        path=main,
        other_paths=others,
        directory_id=new_directory_id(machine.entropy),
        is_broker=config.is_broker,
        rack=config.rack,
        voter=None if is_static or not config.is_controller else controller_endpoints(config)[0],
    )
