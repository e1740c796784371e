"""Finalized feature levels (KIP-584, KIP-1022)."""

from collections import Counter
from enum import IntEnum

from moldau.cluster.decisions.kinds.table import KINDS, check_feature_off
from moldau.cluster.decisions.own_features import OWN_FEATURES, check_records_can_end, reasons_against
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.image import (
    ELIGIBLE_LEADER_REPLICAS_FEATURE,
    METADATA_VERSION_FEATURE,
    TRANSACTION_VERSION_FEATURE,
)
from moldau.cluster.image.registrations import SupportedFeature
from moldau.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau.protocol.records.metadata import ClearElrRecord, FeatureLevelRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

METADATA_VERSION_MIN = 7
"""3.3-IV3, the first metadata version that KRaft clusters used in production."""
METADATA_VERSION_LATEST = 29
"""4.2-IV1. Moldau reads and writes the record schemas of this metadata version."""

ELIGIBLE_LEADER_REPLICAS_LATEST = 1
ELIGIBLE_SINCE, _ELIGIBLE_BY_DEFAULT_SINCE = 23, 26
"""Two metadata versions. From the first one (4.0-IV1) on, partition records have fields for eligible leader
replicas. From the second one (4.1-IV0) on, new clusters enable the feature of eligible leader replicas."""

TRANSACTION_VERSION_LATEST = 2
_TRANSACTIONS_SINCE = 24
"""4.0-IV2. From this version on, new clusters increase the epoch of a producer at the end of each transaction
(KIP-890)."""

SUPPORTED_FEATURES = (
    SupportedFeature(METADATA_VERSION_FEATURE, METADATA_VERSION_MIN, METADATA_VERSION_LATEST),
    SupportedFeature(ELIGIBLE_LEADER_REPLICAS_FEATURE, 0, ELIGIBLE_LEADER_REPLICAS_LATEST),
    SupportedFeature(TRANSACTION_VERSION_FEATURE, 0, TRANSACTION_VERSION_LATEST),
    *(kind.feature for kind in KINDS if kind.feature is not None),
    *OWN_FEATURES,
)
"""The features with which a node of this version registers."""


def default_features(metadata_version: int) -> list[FeatureLevelRecord]:
    """Return the feature levels of a new cluster, in addition to the metadata version."""
    levels: list[FeatureLevelRecord] = []
    if metadata_version >= _ELIGIBLE_BY_DEFAULT_SINCE:
        level = ELIGIBLE_LEADER_REPLICAS_LATEST
        levels.append(FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_FEATURE, feature_level=level))
    if metadata_version >= _TRANSACTIONS_SINCE:
        level = TRANSACTION_VERSION_LATEST
        levels.append(FeatureLevelRecord(name=TRANSACTION_VERSION_FEATURE, feature_level=level))
    return levels


class UpgradeType(IntEnum):
    """The direction in which a level may change."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(view: View, request: UpdateFeaturesRequest) -> ControllerResult:
    """Change feature levels. If one change in the request is refused, no level is changed, and the response
    names the refused feature."""
    counts = Counter(update.feature for update in request.feature_updates)
    records: list[Message] = []
    for update in request.feature_updates:
        try:
            if counts[update.feature] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"Feature {update.feature} is named twice.")
            _check(view, update)
        except KafkaError as error:
            return ControllerResult(_response(request, error))
        level = max(0, update.max_version_level)
        if view.image.features.get(update.feature, 0) != level:
            records.append(FeatureLevelRecord(name=update.feature, feature_level=level))
            if update.feature == ELIGIBLE_LEADER_REPLICAS_FEATURE and level == 0:
                records.append(ClearElrRecord())
    return ControllerResult(_response(request, None), () if request.validate_only else records)


def _response(request: UpdateFeaturesRequest, error: KafkaError | None) -> UpdateFeaturesResponse:
    code = ErrorCode.none if error is None else error.code
    message = None if error is None else error.message
    # Responses of versions below 2 have an error for each feature. All features get the same error, because a
    # request changes all its features or none.
    results = [
        UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=message)
        for update in request.feature_updates
    ]
    return UpdateFeaturesResponse(error_code=code, error_message=message, results=results)


def _check(view: View, update: FeatureUpdateKey) -> None:
    name, level = update.feature, update.max_version_level
    kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type
    if kind not in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        raise KafkaError(ErrorCode.invalid_update_version, f"Unknown upgrade type {kind} of {name}.")
    current = view.image.features.get(name, 0)
    if level < 0 or (level == 0 and name == METADATA_VERSION_FEATURE):
        raise KafkaError(ErrorCode.invalid_update_version, f"{name} cannot have level {level}.")
    if level > current and kind != UpgradeType.UPGRADE:
        raise KafkaError(
            ErrorCode.invalid_update_version,
            f"Cannot downgrade {name} to {level}: the cluster has {current}, so it would be an upgrade.",
        )
    if level < current:
        _check_downgrade(name, current, level, UpgradeType(kind))
    if name == ELIGIBLE_LEADER_REPLICAS_FEATURE:
        _check_eligible(view, level)
    if level == 0:
        check_feature_off(view.image, name)
        check_records_can_end(view.image, name)
    if level > 0:
        _check_supported(view, name, level)


def _check_downgrade(name: str, current: int, level: int, kind: UpgradeType) -> None:
    if kind == UpgradeType.UPGRADE:
        raise KafkaError(
            ErrorCode.invalid_update_version,
            f"Cannot move {name} from {current} down to {level} without a downgrade being asked for.",
        )
    if name == METADATA_VERSION_FEATURE:
        # The log contains records of the higher level. Nodes that support only the lower level could not read
        # these records.
        raise KafkaError(
            ErrorCode.invalid_update_version,
            f"Downgrading {name} from {current} to {level} is not supported.",
        )


def _check_eligible(view: View, level: int) -> None:
    """Check whether the feature of eligible leader replicas can change to ``level``. Level 0 requires that no
    in-sync set is empty. A higher level requires a metadata version whose partition records have the fields
    for eligible leader replicas."""
    if level > 0 and view.image.metadata_version < ELIGIBLE_SINCE:
        raise KafkaError(
            ErrorCode.invalid_update_version,
            f"{ELIGIBLE_LEADER_REPLICAS_FEATURE} {level} needs {METADATA_VERSION_FEATURE} {ELIGIBLE_SINCE}.",
        )
    waiting = next(
        (topic.name for topic in view.image.topics if any(not each.isr for each in topic.partitions)), None
    )
    if level == 0 and waiting is not None:
        raise KafkaError(
            ErrorCode.invalid_update_version,
            f"Partitions of {waiting} have no in-sync replica, and could never have a leader again.",
        )


def _check_supported(view: View, name: str, level: int) -> None:
    own = next((feature for feature in view.settings.supported_features if feature.name == name), None)
    if own is None or not own.supports(level):
        raise KafkaError(
            ErrorCode.invalid_update_version, f"The controller does not support {name} level {level}."
        )
    for reason in reasons_against(view, name, level):
        raise KafkaError(ErrorCode.invalid_update_version, f"{reason}.")
