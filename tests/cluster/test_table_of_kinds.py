"""The table of the kinds of topics (``cluster/decisions/kinds/table.py``). An incomplete row stops the
process at its start, with an error that names the file to change."""

import importlib
import pkgutil

import pytest
from cluster_fakes import SmallConfigPolicy

from moldau.cluster.controller import controller
from moldau.cluster.controller.controller import Controller
from moldau.cluster.decisions import kinds
from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.decisions.kinds.kind import TopicKind
from moldau.cluster.decisions.kinds.table import CLASSIC, KINDS, checked_kinds
from moldau.cluster.decisions.view import ControllerSettings
from moldau.cluster.image.registrations import SupportedFeature
from moldau.config.definition import Synonym
from moldau.config.keys.rows import boolean
from moldau.config.topic_config import TOPIC
from moldau.protocol.records.metadata import FeatureLevelRecord
from moldau.runtime import SeededEntropy

FEATURE = SupportedFeature("moldau.sharded.version", 0, 1)


def sharded(
    *,
    name: str = "sharded",
    config_key: str | None = "remote.log.copy.disable",
    enable_key: str | None = "backup.enable",
    feature: SupportedFeature = FEATURE,
) -> TopicKind:
    return TopicKind(
        name=name,
        config_key=config_key,
        enable_key=enable_key,
        feature=feature,
        replicas_hold_data=True,
        has_remote_tier=False,
        no_chunks="its shards are small",
    )


def test_every_declared_kind_is_in_the_table() -> None:
    """Without its row in the table, topics of the kind would be created as classic topics."""
    modules = [
        importlib.import_module(f"{kinds.__name__}.{each.name}")
        for each in pkgutil.iter_modules(kinds.__path__)
    ]
    declared = {
        id(value): f"{name} of {module.__name__}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, TopicKind)
    }
    in_table = {id(kind) for kind in (CLASSIC, *KINDS)}
    missing = [place for key, place in declared.items() if key not in in_table]
    assert not missing, f"add {missing} to KINDS (cluster/decisions/kinds/table.py)"


def test_a_complete_row_is_accepted() -> None:
    assert checked_kinds(DISKLESS, sharded()) == (DISKLESS, sharded())
    assert checked_kinds(sharded(enable_key=None)) == (sharded(enable_key=None),)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (sharded(config_key=None), "no config_key, so no topic can be of it"),
        (sharded(config_key="sharded.enable"), "sharded.enable, which has no row in config/keys/topic.py"),
        (sharded(config_key="retention.ms"), "retention.ms, which is no boolean key"),
        (
            sharded(enable_key="sharded.system.enable"),
            "sharded.system.enable, which has no row in config/keys/",
        ),
        (sharded(enable_key="num.partitions"), "num.partitions, which is no boolean key"),
        (sharded(feature=SupportedFeature("sharded", 0, 1)), "whose name must begin with moldau."),
        (sharded(config_key=DISKLESS.config_key), "both have the config_key diskless.enable"),
        (sharded(name="diskless"), "both have the name diskless"),
        (sharded(name="classic"), "both have the name classic"),
        (sharded(feature=DISKLESS.feature), "both have the feature moldau.diskless.version"),
    ],
)
def test_an_incomplete_row_is_refused_with_the_place(row: TopicKind, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        checked_kinds(DISKLESS, row)


def test_a_default_that_topics_do_not_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the default changed, existing topics would have the config of another kind."""
    key = boolean("sharded.enable", False, "", synonyms=(Synonym("log.diskless.enable"),))
    monkeypatch.setitem(TOPIC._keys, key.name, key)
    with pytest.raises(ValueError, match=r"topic\.py needs fixed_at_creation=True"):
        checked_kinds(sharded(config_key=key.name))


@pytest.mark.parametrize("enable_key", [None, "backup.enable"])
def test_only_a_config_of_the_node_gives_a_new_cluster_the_level_of_a_kind(
    monkeypatch: pytest.MonkeyPatch, enable_key: str | None
) -> None:
    """Nodes of Apache Kafka cannot join a cluster in which a feature level of Moldau is above 0."""
    monkeypatch.setattr(controller, "KINDS", (sharded(enable_key=enable_key),))
    settings = ControllerSettings(cluster_id="c", enabled_kinds=frozenset({"sharded"}))
    first = Controller(settings, SmallConfigPolicy(), SeededEntropy(7)).bootstrap(())
    levels = {each.name: each.feature_level for each in first if isinstance(each, FeatureLevelRecord)}
    assert levels.get(FEATURE.name) == (None if enable_key is None else 1)
