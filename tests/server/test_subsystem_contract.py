"""The steps of the contract between a broker and its subsystems."""

import asyncio
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.decisions.kinds.kind import TopicKind
from moldau.cluster.decisions.kinds.table import CLASSIC, KINDS
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage, Provenance
from moldau.cluster.image.registrations import Endpoint
from moldau.cluster.publisher import MetadataPublisher
from moldau.network.served import Served
from moldau.protocol.own.rights import Right
from moldau.protocol.records.metadata import ConfigRecord
from moldau.server.composition import Composition, ControllerComposition
from moldau.server.extensions import Extensions
from moldau.server.subsystem import Contribution, Subsystem, SubsystemList
from moldau.server.subsystems.listeners import ListenersSubsystem
from moldau.server.topics.partition_kinds import KindClaim, PartitionKinds, RefusingKind

BROKER_TYPE = 4


class Noted(Subsystem):
    """A subsystem that records each step, and fails in one of them."""

    def __init__(self, name: str, notes: list[str], fails_in: str = "") -> None:
        self._name, self._notes, self._fails_in = name, notes, fails_in

    def _note(self, step: str) -> None:
        self._notes.append(f"{step} {self._name}")
        if step == self._fails_in:
            raise RuntimeError(f"{self._name} cannot {step}")

    async def start(self) -> None:
        self._note("start")

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._note("image")

    def reconfigure(self) -> None:
        self._note("reconfigure")

    async def listening(self, endpoints: Sequence[Endpoint]) -> None:
        self._note("listening")

    async def serve(self) -> None:
        self._note("serve")

    async def drain(self) -> None:
        self._note("drain")

    async def stop(self) -> None:
        self._note("stop")


def publisher_with(*records: ConfigRecord) -> MetadataPublisher:
    publisher = MetadataPublisher(lambda error: None)
    delta = MetadataDelta(EMPTY_IMAGE).replay_all(records)
    publisher._image = delta.apply(Provenance(1, 1, 0))
    return publisher


def broker_config() -> ConfigRecord:
    return ConfigRecord(resource_type=BROKER_TYPE, resource_name="", name="num.partitions", value="2")


def test_steps_go_forward_in_order_and_back_in_reverse() -> None:
    async def life() -> list[str]:
        notes: list[str] = []
        subsystems = SubsystemList([Noted("a", notes), Noted("b", notes)])
        await subsystems.start()
        subsystems.follow(publisher_with(broker_config()))
        await subsystems.listening([])
        await subsystems.serve()
        await subsystems.drain()
        await subsystems.stop()
        return notes

    assert asyncio.run(life()) == [
        "start a",
        "start b",
        "image a",
        "image b",
        "reconfigure a",
        "reconfigure b",
        "listening a",
        "listening b",
        "serve a",
        "serve b",
        "drain b",
        "drain a",
        "stop b",
        "stop a",
    ]


def test_the_first_image_is_compared_with_an_empty_image_once_for_all_subsystems() -> None:
    """A comparison of two images takes time in proportion to the number of topics, so the images must not be
    compared again for each subsystem."""
    deltas: list[MetadataDelta] = []

    class Keeper(Subsystem):
        def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
            deltas.append(delta)

    SubsystemList([Keeper(), Keeper()]).follow(publisher_with(broker_config()))
    assert deltas[0] is deltas[1]


def test_subsystems_follow_the_configuration_only_when_the_brokers_own_has_changed() -> None:
    notes: list[str] = []
    record = ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="2")
    SubsystemList([Noted("a", notes)]).follow(publisher_with(record))
    assert notes == ["image a"]


def test_an_error_in_one_subsystem_does_not_keep_the_image_from_the_next() -> None:
    notes: list[str] = []
    subsystems = SubsystemList([Noted("a", notes, "image"), Noted("b", notes)])
    subsystems.follow(publisher_with(broker_config()))
    assert notes == ["image a", "image b", "reconfigure a", "reconfigure b"]


def test_an_error_in_one_subsystem_does_not_keep_the_configuration_from_the_next() -> None:
    notes: list[str] = []
    subsystems = SubsystemList([Noted("a", notes, "reconfigure"), Noted("b", notes)])
    subsystems.follow(publisher_with(broker_config()))
    assert notes[-2:] == ["reconfigure a", "reconfigure b"]


@pytest.mark.parametrize("step", ["drain", "stop"])
def test_each_subsystem_is_stopped_though_another_fails_and_the_error_is_raised(step: str) -> None:
    notes: list[str] = []
    subsystems = SubsystemList([Noted("a", notes), Noted("b", notes, step), Noted("c", notes)])
    with pytest.raises(RuntimeError, match=f"b cannot {step}"):
        asyncio.run(getattr(subsystems, step)())
    assert notes == [f"{step} c", f"{step} b", f"{step} a"]


def test_the_last_claim_on_a_topic_decides_on_its_kind() -> None:
    kinds = PartitionKinds()
    classic, tiered = SimpleNamespace(), SimpleNamespace()
    kinds.add([KindClaim(classic)])
    kinds.add([KindClaim(tiered, lambda topic: topic.name == "tiered")])
    assert kinds.of(SimpleNamespace(name="tiered")) is tiered
    assert kinds.of(SimpleNamespace(name="plain")) is classic


def test_a_kind_that_wraps_another_claims_topics_of_that_kind_only() -> None:
    kinds = PartitionKinds()
    classic, diskless, tiered = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
    kinds.add([KindClaim(classic), KindClaim(diskless, lambda topic: topic.name == "diskless")])
    kinds.add([KindClaim(tiered, lambda topic: topic.name != "__internal", wraps=classic)])
    found = {name: kinds.of(SimpleNamespace(name=name)) for name in ("plain", "diskless", "__internal")}
    assert found == {"plain": tiered, "diskless": diskless, "__internal": classic}


def sharded(*, has_remote_tier: bool = False, no_chunks: str | None = "its shards are small") -> TopicKind:
    return TopicKind(
        name="sharded",
        is_marked=False,
        replicas_hold_data=True,
        has_remote_tier=has_remote_tier,
        no_chunks=no_chunks,
    )


def test_a_kind_of_topics_without_partitions_is_named_when_the_broker_is_composed() -> None:
    kinds = PartitionKinds()
    row = sharded()
    kinds.add([KindClaim(SimpleNamespace())])
    with pytest.raises(ValueError, match="no subsystem of the broker claims the sharded topics"):
        kinds.check_complete([row])
    kinds.add([KindClaim(SimpleNamespace(), row.is_kind_of)])
    kinds.check_complete([row])


def test_a_kind_of_topics_gets_the_tier_and_the_chunks_of_its_row() -> None:
    """If no claim gave a tier to a kind with ``has_remote_tier=True``, the segments of its tiered topics
    would wait for a copy forever."""
    kinds, row = PartitionKinds(), sharded(has_remote_tier=True, no_chunks=None)
    classic, partitions, tier = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
    kinds.add([KindClaim(classic), KindClaim(partitions, row.is_kind_of)])
    kinds.add([KindClaim(SimpleNamespace(), wraps=classic, gives_tier=True, gives_chunks=True)])
    with pytest.raises(ValueError, match="sharded topics have has_remote_tier=True"):
        kinds.check_complete([row])
    kinds.add([KindClaim(tier, wraps=partitions, gives_tier=True)])
    with pytest.raises(ValueError, match="sharded topics have no_chunks=None"):
        kinds.check_complete([row])
    kinds.add([KindClaim(SimpleNamespace(), wraps=tier, gives_chunks=True)])
    kinds.check_complete([row])


def test_a_kind_of_topics_that_a_broker_refuses_needs_no_tier_and_no_chunks() -> None:
    kinds, row = PartitionKinds(), sharded(has_remote_tier=True, no_chunks=None)
    kinds.add([KindClaim(RefusingKind(lambda topic: "sharded topics are off"), row.is_kind_of)])
    kinds.check_complete([row])


def test_a_claim_on_a_kind_of_topics_without_a_row_is_refused() -> None:
    """If the row of the kind is missing in ``KINDS``, the controller creates classic topics instead, and no
    topic matches the claim. So the start is refused."""
    kinds, row = PartitionKinds(), sharded()
    kinds.add(
        [KindClaim(SimpleNamespace(), CLASSIC.is_kind_of), KindClaim(SimpleNamespace(), row.is_kind_of)]
    )
    with pytest.raises(
        ValueError, match=r"claims the sharded topics, and KINDS \(cluster/decisions/kinds/table.py\) has no"
    ):
        kinds.check_complete(KINDS[:0])
    kinds.check_complete([row])


def test_gateways_need_the_topic_of_their_coordinators() -> None:
    with pytest.raises(ValueError, match="sharded has rack_brokers: they need a metadata_topic"):
        dataclasses.replace(sharded(), rack_brokers=DISKLESS.rack_brokers)


class Answering(Subsystem):
    """A subsystem that contributes the given handlers."""

    def __init__(self, contribution: Contribution) -> None:
        self._contribution = contribution

    def contribution(self) -> Contribution:
        return self._contribution


async def answer(context: object, request: object) -> None:
    """A handler that does nothing."""


@pytest.mark.parametrize(
    "contribution",
    [
        Contribution(handlers={11999: Served(answer, right=Right.NOTHING)}),
        Contribution(throttles={11999: lambda *_: 0}),
        Contribution(kinds=[KindClaim(SimpleNamespace(), lambda topic: True)]),
    ],
    ids=["handlers", "throttles", "kinds"],
)
def test_a_controller_refuses_contributions_that_its_listeners_would_never_use(
    contribution: Contribution, request: pytest.FixtureRequest
) -> None:
    subsystem = Answering(contribution)
    Composition(Extensions()).add(subsystem)
    with pytest.raises(
        ValueError, match=rf"Answering contributes {request.node.callspec.id} to a controller"
    ):
        ControllerComposition(Extensions()).add(subsystem)


def test_a_controller_accepts_health_checks() -> None:
    extensions = Extensions()
    ControllerComposition(extensions).add(Answering(Contribution(checks={"it": lambda: None})))
    assert list(extensions.checks) == ["it"]


def test_no_subsystem_comes_after_the_listeners() -> None:
    """The listeners copy the handlers of the subsystems that are before the listeners in the list."""
    composition = Composition(Extensions())
    composition.subsystems.append(object.__new__(ListenersSubsystem))
    with pytest.raises(ValueError, match="handlers of Answering, after the listeners, are not served"):
        composition.add(Answering(Contribution()))
