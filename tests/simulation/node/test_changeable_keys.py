"""Some keys may change while the node runs. After such a change the key must be read again, in one of three
ways. The method ``reconfigure`` of the key's subsystem reads it, or the node reads it with the configs of
topics, or each use reads it from the effective configuration."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_stopped_subsystems import new_topics, run, show

import moldau
from moldau.config.broker import BROKER, BrokerConfig
from moldau.config.definition import Update
from moldau.config.keys.without_effect import WAITS_FOR
from moldau.protocol.records.metadata import ConfigRecord
from moldau.server.node import ServerNode
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.process import Process
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

BROKER_TYPE, HERE = 4, 11
ROOT = Path(moldau.__file__).parent
READ_AT_USE = {
    "diskless.consolidation.enable": "server/subsystems/consolidation/subsystem.py",
    "diskless.consolidation.max.age.ms": "server/subsystems/diskless/settings.py",
    "transaction.partition.verification.enable": "server/subsystems/transactions/verifier.py",
    "listeners": "config/dynamic.py",
    "listener.security.protocol.map": "config/dynamic.py",
    "config.providers": "server/settings.py",
}
"""Keys that no method ``reconfigure`` reads. The value is a file with code that reads the key from the
effective configuration at every use, or that refuses a change of the key."""


class Noting(dict[str, Any]):
    """A mapping of values that records which keys were read."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)


def test_a_changeable_key_is_read_again_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    make, explicit = BrokerConfig.__init__, BrokerConfig.explicit

    def noted(self: BrokerConfig, *layers: Mapping[str, str]) -> None:
        make(self, *layers)
        self.values = Noting(self.values, read)  # type: ignore[assignment]

    def noted_explicit(self: BrokerConfig, name: str) -> Any:
        if isinstance(self.values, Noting):
            read.add(name)
        return explicit(self, name)

    async def story(cluster: object, node: ServerNode, process: Process) -> None:
        show(node, *new_topics(0, leader=HERE))
        await node.get(PartitionsSubsystem).settled()
        with monkeypatch.context() as patch:
            patch.setattr(BrokerConfig, "__init__", noted)
            patch.setattr(BrokerConfig, "explicit", noted_explicit)
            show(
                node,
                ConfigRecord(
                    resource_type=BROKER_TYPE, resource_name="", name="log.cleaner.backoff.ms", value="7"
                ),
            )
            await node.get(PartitionsSubsystem).settled()
            await asyncio.sleep(0.1)

    with World(7) as world:
        run(world, story)
    changeable = {
        key.name
        for key in BROKER
        if key.update is not Update.READ_ONLY and key.has_effect and key.name not in WAITS_FOR
    }
    forgotten = changeable - read - set(READ_AT_USE)
    assert not forgotten, f"read them in the reconfigure of their subsystem: {sorted(forgotten)}"
    assert set(READ_AT_USE) <= changeable - read, "these are read by a reconfigure, or never change"
    for name, file in READ_AT_USE.items():
        assert f'"{name}"' in (ROOT / file).read_text(), f"{file} does not read {name} any more"
