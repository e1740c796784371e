"""The first records of a new cluster. They contain the feature levels that were set when the first node was
formatted, so all other nodes use the same levels."""

from cluster_fakes import SmallConfigPolicy

from moldau.cluster.controller.controller import Controller
from moldau.cluster.decisions.features import METADATA_VERSION_LATEST
from moldau.cluster.decisions.view import ControllerSettings
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image import EMPTY_IMAGE
from moldau.protocol.records.metadata import FeatureLevelRecord
from moldau.runtime import SeededEntropy


def test_the_levels_of_a_formatted_folder_are_repeated_in_the_log() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION_LATEST)
    image = image_of([level], EMPTY_IMAGE)
    settings = ControllerSettings(cluster_id="c", supported_features=())
    controller = Controller(settings, SmallConfigPolicy(), SeededEntropy(7))
    controller.activate(image, 0)
    assert image.provenance.offset < 0
    assert list(controller.bootstrap(())) == [level]
