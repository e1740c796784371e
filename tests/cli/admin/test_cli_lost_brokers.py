"""Brokers that are lost permanently: other brokers get their replicas, and the brokers are unregistered."""

import json
from typing import Any

import pytest

import moldau.testing
from moldau.client.cluster import Client, check, with_client
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest

FACTORS = ("offsets.topic", "transaction.state.log", "diskless.metadata.topic", "remote.log.metadata.topic")
PROPERTIES = {f"{each}.replication.factor": "2" for each in FACTORS}


@pytest.mark.real_time
def test_a_lost_broker_is_replaced_and_unregistered(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with moldau.testing.Cluster(brokers=4, properties=PROPERTIES) as cluster:
        monkeypatch.setenv("MOLDAU_BOOTSTRAP", cluster.bootstrap_servers)

        def brokers() -> dict[int, bool]:
            """Whether each registered broker is fenced."""
            return {
                row["id"]: row["fenced"]
                for row in json.loads(cli("brokers", "list", "--json").out)["brokers"]
            }

        def replicas() -> set[int]:
            shown = json.loads(cli("topics", "describe", "orders", "--json").out)[0]["partitions"]
            return {each for row in shown for each in row["replicas"]}

        def refused(broker: int, reason: str) -> bool:
            ran = cli("brokers", "unregister", str(broker), "--yes")
            return ran.code == 1 and reason in ran.err

        assert cli("topics", "create", "orders", "-p", "4", "-r", "2").code == 0
        assert replicas() == {1, 2, 3, 4}
        assert refused(3, "broker 3 is running: stop it first")
        cluster.kill(3)
        while not brokers()[3]:
            pass
        assert refused(3, "run `moldau brokers decommission 3` first")
        assert cli("brokers", "decommission", "3", "--yes").code == 0
        unregistered = cli("brokers", "unregister", "3", "--yes")
        assert (unregistered.code, unregistered.out) == (0, "broker 3 is unregistered\n")
        while 3 in brokers():
            pass
        assert refused(3, "BROKER_ID_NOT_REGISTERED")

        async def unregister_too_early(client: Client) -> None:
            response = await client.ask(UnregisterBrokerRequest(broker_id=4))
            check(response.error_code, response.error_message, "broker 4")

        cluster.kill(4)
        while not brokers()[4]:
            pass
        with_client(cluster.bootstrap_servers, 60.0, unregister_too_early)
        while 4 in brokers():
            pass
        assert 4 in replicas()
        assert cli("brokers", "decommission", "4", "--yes").code == 0
        assert replicas() == {1, 2}
