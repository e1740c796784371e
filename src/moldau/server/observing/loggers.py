"""The levels of this process's loggers. They are shown as a config resource (BROKER_LOGGER, KIP-412)."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from moldau.cluster.decisions.configs import ConfigOperation
from moldau.runtime.errors import ErrorCode, KafkaError

ROOT: Final = "root"
LEVELS: Final[Mapping[str, int]] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""Kafka's names for Python's levels. TRACE includes all messages."""


class LevelChange(Protocol):
    """One change of an IncrementalAlterConfigs request."""

    @property
    def name(self) -> str: ...
    @property
    def config_operation(self) -> int: ...
    @property
    def value(self) -> str | None: ...


def levels() -> dict[str, str]:
    """The effective level of every logger, by name. The result also contains parents in the hierarchy of
    loggers for which Python has only a placeholder."""
    names = sorted(logging.root.manager.loggerDict)
    return {ROOT: _name_of(logging.root.level), **{name: _name_of(_effective(name)) for name in names}}


def check(changes: Sequence[LevelChange]) -> None:
    """Raises ``KafkaError`` with Kafka's code for the first change that cannot be made."""
    for change in changes:
        _check(change)


def apply(changes: Sequence[LevelChange]) -> None:
    """Apply changes that have passed :func:`check`. They are lost when the process restarts."""
    for change in changes:
        logger = logging.root if change.name == ROOT else logging.getLogger(change.name)
        is_set = change.config_operation == ConfigOperation.SET
        logger.setLevel(LEVELS[change.value or ""] if is_set else logging.NOTSET)


def _check(change: LevelChange) -> None:
    name, operation = change.name, change.config_operation
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        known = operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT)
        what = (
            f"{ConfigOperation(operation).name} operation" if known else f"Unknown operation type {operation}"
        )
        raise KafkaError(ErrorCode.invalid_request, f"{what} is not allowed for the BROKER_LOGGER resource")
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise KafkaError(ErrorCode.invalid_config, f"Logger {name} does not exist!")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            raise KafkaError(
                ErrorCode.invalid_request, f"Removing the log level of the {ROOT} logger is not allowed"
            )
    elif change.value not in LEVELS:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {name} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def _effective(name: str) -> int:
    """Return the result of ``Logger.getEffectiveLevel``, but create no placeholder loggers."""
    loggers = logging.root.manager.loggerDict
    while name:
        logger = loggers.get(name)
        if isinstance(logger, logging.Logger) and logger.level:
            return logger.level
        name = name.rpartition(".")[0]
    return logging.root.level


def _name_of(level: int) -> str:
    return next((name for name, least in LEVELS.items() if level >= least), "TRACE")
