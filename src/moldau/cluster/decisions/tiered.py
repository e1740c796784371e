"""Allowed changes of a topic's tiering (KIP-405, KIP-950). Pure."""

from collections.abc import Mapping

from moldau.runtime import ErrorCode, KafkaError

_ENABLE, _DELETE = "remote.storage.enable", "remote.log.delete.on.disable"


def check_change(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise ``KafkaError(invalid_config)`` when a topic's remote data would be left without an owner."""
    if _is_true(old, _ENABLE) and not _is_true(new, _ENABLE) and not _is_true(new, _DELETE):
        raise KafkaError(
            ErrorCode.invalid_config,
            "It is invalid to disable remote storage without deleting remote data. To keep the remote data"
            " and turn to read only, set remote.storage.enable=true,remote.log.copy.disable=true; to disable"
            " remote storage and delete all remote data, set"
            " remote.storage.enable=false,remote.log.delete.on.disable=true.",
        )


def _is_true(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").strip().lower() == "true"
