"""A part of the metadata that Kafka does not have is one file and one row in ``PARTS``.

This test adds such a part: a motto for each broker. The record of the part reaches the image, snapshots, the
backup and subscribers. At feature level 0 the controller does not append the record.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_fakes import SmallConfigPolicy
from metadata_log_model import MemoryMetadataLog

from moldau.backup.image_object import ImageEncoder, decode_image
from moldau.cluster.controller import service
from moldau.cluster.controller.controller import Controller
from moldau.cluster.controller.decided_apis import DECISIONS, DecidedApi
from moldau.cluster.controller.service import RECORDS_A_TURN, ControllerService
from moldau.cluster.decisions import own_features
from moldau.cluster.decisions.view import ControllerResult, ControllerSettings, View
from moldau.cluster.image import delta, image_records
from moldau.cluster.image.changes import Changes
from moldau.cluster.image.delta import MetadataDelta, image_of
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.cluster.image.parts.part import OwnPart
from moldau.cluster.image.parts.table import PARTS, PartTable
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.publisher import MetadataPublisher
from moldau.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message, message, wire
from moldau.runtime import ErrorCode, KafkaError, SeededEntropy
from moldau.runtime.workers import InlineWorkers
from moldau.simulation.world.world import World

FEATURE = SupportedFeature("moldau.motto.version", 0, 1)


@message
class MottoRecord(Message):
    """The motto of a broker; null removes it."""

    API_KEY = 11_990
    VERSIONS = "0"
    FLEXIBLE = "0+"
    broker_id: int = wire("int32", default=0)
    text: str | None = wire("string", default="", nullable="0+")


def _replay(changes: Changes[int, str], record: MottoRecord) -> None:
    if record.text is None:
        changes.remove(record.broker_id)
    else:
        changes.put(record.broker_id, record.text)


def _to_records(mottos: PersistentMap[int, str]) -> Iterator[Message]:
    for broker_id, text in mottos.items():
        yield MottoRecord(broker_id=broker_id, text=text)


MOTTOS: OwnPart[int, str] = OwnPart(
    name="mottos", feature=FEATURE, records={MottoRecord: _replay}, to_records=_to_records
)


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the row of the new part to the table of all parts, for one test."""
    monkeypatch.setattr(r.RECORDS, "_classes", dict(r.RECORDS._classes))
    table = PartTable(*PARTS.parts, MOTTOS)
    for module in (delta, image_records, own_features, service):
        monkeypatch.setattr(module, "PARTS", table)


LEVEL = r.FeatureLevelRecord(name=FEATURE.name, feature_level=1)
OURS, THEIRS = MottoRecord(broker_id=1, text="ours"), MottoRecord(broker_id=2, text="theirs")


def test_the_part_survives_the_log_a_snapshot_and_the_backup() -> None:
    image = image_of([LEVEL, OURS, THEIRS])
    assert dict(MOTTOS.of(image).items()) == {1: "ours", 2: "theirs"}
    assert image != image_of([LEVEL, OURS])
    values = [encode_record(each, 30) for each in to_records(image)]
    assert image_of(r.RECORDS.decode(value) for value in values) == image
    content = asyncio.run(ImageEncoder().encode(image))
    assert image_of(decode_image(memoryview(content))) == image
    removed = [MottoRecord(broker_id=each, text=None) for each in (1, 2)]
    assert image_of(removed, image) == image_of([LEVEL]), "nothing is left of a part without entries"


def test_subscribers_see_the_changes() -> None:
    before, after = image_of([LEVEL, OURS]), image_of([LEVEL, THEIRS])
    changed = delta.delta_between(before, after)
    assert changed.changes(MOTTOS).entries == {1: None, 2: "theirs"}
    assert changed.apply() == after
    assert MetadataDelta(before).replay_all([OURS]).changes(MOTTOS).get(1) == "ours"
    assert MOTTOS.of(EMPTY_IMAGE) == PersistentMap()


def test_the_level_cannot_be_0_while_the_part_has_entries() -> None:
    assert FEATURE in own_features.PARTS.own_features
    own_features.check_records_can_end(image_of([LEVEL]), FEATURE.name)
    own_features.check_records_can_end(image_of([LEVEL, OURS]), "moldau.other.version")
    with pytest.raises(
        KafkaError, match=r"have mottos: moldau\.motto\.version can be 0 when they are removed"
    ):
        own_features.check_records_can_end(image_of([LEVEL, OURS]), FEATURE.name)


class Subscriber:
    """Records the mottos in each delta."""

    def __init__(self) -> None:
        self.seen: list[dict[int, str | None]] = []

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.seen.append(dict(delta.changes(MOTTOS).entries))


@pytest.mark.parametrize("repeats", [1, RECORDS_A_TURN], ids=["a small decision", "a decision aside"])
def test_the_controller_does_not_append_a_record_at_level_0(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, repeats: int
) -> None:
    decided: list[Message] = []

    def decide(_view: View, _inputs: Any, _request: Message) -> ControllerResult:
        return ControllerResult(AllocateProducerIdsResponse(), list(decided))

    monkeypatch.setitem(DECISIONS, AllocateProducerIdsRequest, DecidedApi(decide))
    log, publisher, subscriber = MemoryMetadataLog(auto=True), MetadataPublisher(pytest.fail), Subscriber()
    settings = ControllerSettings(cluster_id="MoldauServiceClusterId", supported_features=(FEATURE,))
    controller = Controller(settings, SmallConfigPolicy(), SeededEntropy(1))
    controllers = ControllerService(1, controller, log, publisher, InlineWorkers())

    async def answer_to(*records: Message) -> ErrorCode:
        decided[:] = records
        response: AllocateProducerIdsResponse = await controllers.handle(AllocateProducerIdsRequest())
        return response.error_code

    async def story() -> None:
        log.add_listener(publisher)
        log.add_listener(controllers)
        log.elect(1)
        log.commit()
        await asyncio.sleep(0)
        publisher.subscribe(subscriber)
        end = log.next_offset()
        assert await answer_to(*[OURS] * repeats, THEIRS) is ErrorCode.unknown_server_error
        assert "a decision has made a MottoRecord, and moldau.motto.version is 0" in caplog.text
        assert (log.next_offset(), len(MOTTOS.of(controllers.image))) == (end, 0)
        assert await answer_to(LEVEL) is ErrorCode.none
        assert await answer_to(*[OURS] * repeats, THEIRS) is ErrorCode.none
        assert subscriber.seen[-1] == {1: "ours", 2: "theirs"}
        assert MOTTOS.of(publisher.image) == MOTTOS.of(controllers.image)
        controllers.close()

    with World(1) as world:
        world.run(story())
