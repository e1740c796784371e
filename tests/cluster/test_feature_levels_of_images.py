"""A node stops if the cluster has a feature level that its version of the software does not support."""

import pytest

from moldau.cluster.image.image import EMPTY_IMAGE
from moldau.cluster.metadata_log import MetadataBatch
from moldau.cluster.publisher import MetadataPublisher
from moldau.protocol.records.metadata import RECORDS, FeatureLevelRecord

SUPPORTED = {"metadata.version": (7, 29), "moldau.diskless.version": (0, 1), "transaction.version": (0, 2)}


class Replica:
    """A publisher to which the test gives one feature level after another."""

    def __init__(self):
        self.faults = []
        self.publisher = MetadataPublisher(self.faults.append, SUPPORTED)
        self.offset = 0

    def commit(self, name, level):
        value = RECORDS.encode(FeatureLevelRecord(name=name, feature_level=level))
        self.publisher.on_commit([MetadataBatch(self.offset, 1, 1, [value])])
        self.offset += 1


@pytest.mark.parametrize(
    ("name", "level"), [("metadata.version", 30), ("moldau.diskless.version", 2), ("moldau.later.version", 1)]
)
def test_a_level_of_a_newer_version_is_a_fault(name, level):
    replica = Replica()
    assert replica.publisher.check_levels() is None
    replica.commit(name, level)
    (fault,) = replica.faults
    assert f"the cluster has {name} {level}" in str(fault)
    assert replica.publisher.is_faulty
    assert replica.publisher.image is EMPTY_IMAGE, "no subscriber has seen the level"


def test_a_level_that_was_lowered_again_is_no_fault_of_a_node_that_catches_up():
    replica = Replica()
    replica.commit("moldau.diskless.version", 2)
    assert not replica.publisher.is_understood, "no snapshot of this image may be written"
    replica.commit("moldau.diskless.version", 1)
    assert replica.publisher.check_levels() is None
    assert not replica.faults
    assert replica.publisher.is_understood


def test_the_level_is_checked_when_the_node_has_caught_up():
    replica = Replica()
    replica.commit("moldau.diskless.version", 2)
    assert "supports it up to 1" in replica.publisher.check_levels()
    assert len(replica.faults) == 1


@pytest.mark.parametrize(("name", "level"), [("transaction.version", 3), ("share.version", 1)])
def test_levels_of_other_features_are_no_fault(name, level):
    """Kafka checks the levels of its own features when a broker registers, so the check of the image ignores
    them."""
    replica = Replica()
    assert replica.publisher.check_levels() is None
    replica.commit(name, level)
    assert not replica.faults
