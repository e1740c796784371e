"""Computes the first voters of the quorum and the first feature levels, from the options of ``storage
format``.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias

import typer

from moldau.cluster.decisions.features import (
    ELIGIBLE_LEADER_REPLICAS_LATEST,
    ELIGIBLE_SINCE,
    METADATA_VERSION_LATEST,
    METADATA_VERSION_MIN,
    TRANSACTION_VERSION_LATEST,
)
from moldau.cluster.folders.formatter import FormatRequest
from moldau.cluster.folders.initial_voters import parse_initial_controllers
from moldau.cluster.folders.meta_properties import FormatError
from moldau.cluster.image.image import (
    ELIGIBLE_LEADER_REPLICAS_FEATURE,
    METADATA_VERSION_FEATURE,
    TRANSACTION_VERSION_FEATURE,
)
from moldau.config.broker import BrokerConfig
from moldau.protocol.records.metadata import FeatureLevelRecord
from moldau.quorum.core.voters import KRAFT_VERSION_FEATURE, KRAFT_VERSION_MAX
from moldau.server.metadata.membership import controller_endpoints

_LATEST_LEVELS: Final = {
    ELIGIBLE_LEADER_REPLICAS_FEATURE: ELIGIBLE_LEADER_REPLICAS_LATEST,
    TRANSACTION_VERSION_FEATURE: TRANSACTION_VERSION_LATEST,
}
"""The features whose records are in the first snapshot, with their highest levels."""

StandaloneOption: TypeAlias = Annotated[
    bool, typer.Option("--standalone", "-s", help="Make this controller the first and only voter (KIP-853).")
]
InitialControllersOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--initial-controllers",
        "-I",
        metavar="ID@HOST:PORT:DIRECTORY,…",
        help="The first voters, including this controller.",
    ),
]
NoInitialControllersOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-initial-controllers", "-N", help="Store no voters, because this node joins an existing quorum."
    ),
]
FeatureOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--feature", "-f", metavar="NAME=LEVEL", help="The initial level of a feature."),
]


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The options of the command, as the user entered them."""

    standalone: bool
    initial_controllers: str | None
    no_initial_controllers: bool
    features: tuple[str, ...]


def with_options(request: FormatRequest, config: BrokerConfig, options: FormatOptions) -> FormatRequest:
    """The request with the options applied. Raises ``FormatError`` for options that contradict each other."""
    chosen = [
        name
        for name, is_set in (
            ("--standalone", options.standalone),
            ("--initial-controllers", options.initial_controllers is not None),
            ("--no-initial-controllers", options.no_initial_controllers),
        )
        if is_set
    ]
    if len(chosen) > 1:
        raise FormatError(f"{' and '.join(chosen)} exclude each other.")
    if chosen and config.quorum_voters:
        raise FormatError(f"{chosen[0]} cannot be given if controller.quorum.voters is set.")
    if config.is_controller and not config.quorum_voters and not chosen:
        raise FormatError(
            "Without controller.quorum.voters a controller needs one of --standalone, --initial-controllers"
            " and --no-initial-controllers."
        )
    if (options.standalone or options.initial_controllers is not None) and not config.is_controller:
        raise FormatError(f"{chosen[0]} is for controllers, and process.roles of this node has none.")
    endpoints = controller_endpoints(config)
    if options.standalone:
        request = replace(request, standalone=endpoints[0])
    elif options.initial_controllers is not None:
        voters = parse_initial_controllers(options.initial_controllers, endpoints[0].name)
        request = replace(request, initial_voters=voters)
    return _with_features(request, options.features, is_dynamic=not config.quorum_voters)


def _with_features(request: FormatRequest, features: tuple[str, ...], *, is_dynamic: bool) -> FormatRequest:
    levels: dict[str, int] = {}
    for feature in features:
        name, _, level = feature.partition("=")
        if not level.strip().isdecimal() or name.strip() in levels:
            raise FormatError(f"Feature '{feature}' is not of the form NAME=LEVEL, or named twice.")
        levels[name.strip()] = int(level)
    known = (*_LATEST_LEVELS, KRAFT_VERSION_FEATURE, METADATA_VERSION_FEATURE)
    unknown = sorted(levels.keys() - set(known))
    if unknown:
        raise FormatError(f"Feature {unknown[0]} is not known; known are {', '.join(known)}.")
    version = levels.get(METADATA_VERSION_FEATURE, request.metadata_version)
    if not METADATA_VERSION_MIN <= version <= METADATA_VERSION_LATEST:
        raise FormatError(
            f"{METADATA_VERSION_FEATURE} {version} is not between {METADATA_VERSION_MIN} and"
            f" {METADATA_VERSION_LATEST}."
        )
    expected = KRAFT_VERSION_MAX if is_dynamic else 0
    kraft_version = levels.get(KRAFT_VERSION_FEATURE, expected)
    if kraft_version != expected:
        raise FormatError(
            f"{KRAFT_VERSION_FEATURE} is {expected} "
            + (
                "without controller.quorum.voters."
                if is_dynamic
                else "where controller.quorum.voters is set."
            )
        )
    if levels.get(ELIGIBLE_LEADER_REPLICAS_FEATURE) and version < ELIGIBLE_SINCE:
        raise FormatError(
            f"{ELIGIBLE_LEADER_REPLICAS_FEATURE} needs {METADATA_VERSION_FEATURE} {ELIGIBLE_SINCE}."
        )
    records = [
        FeatureLevelRecord(name=name, feature_level=_checked(name, levels[name], latest))
        for name, latest in _LATEST_LEVELS.items()
        if name in levels
    ]
    return replace(
        request, metadata_version=version, bootstrap_records=(*request.bootstrap_records, *records)
    )


def _checked(name: str, level: int, latest: int) -> int:
    if level > latest:
        raise FormatError(f"{name} {level} is not between 0 and {latest}.")
    return level
