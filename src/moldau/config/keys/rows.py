"""Short functions with which the tables of keys are written."""

from functools import partial
from typing import Protocol

from moldau.config.bounds import Check
from moldau.config.definition import (
    ConfigKey,
    ConfigType,
    Importance,
    Limit,
    ParsedValue,
    Synonym,
    Update,
    Validator,
)

HIGH = Importance.HIGH
MEDIUM = Importance.MEDIUM
LOW = Importance.LOW
CLUSTER_WIDE = Update.CLUSTER_WIDE
PER_BROKER = Update.PER_BROKER
AT_LEAST_ONE = Limit.AT_LEAST_ONE
IN_STEPS = Limit.IN_STEPS
BY_LISTENER_ONLY = Limit.BY_LISTENER_ONLY
SAME_FOR_LISTENERS = Limit.SAME_FOR_LISTENERS

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Row(Protocol):
    def __call__(
        self,
        name: str,
        default: ParsedValue,
        doc: str,
        importance: Importance = ...,
        *,
        check: Validator | None = ...,
        update: Update = ...,
        has_effect: bool = ...,
        limits: Limit = ...,
        synonyms: tuple[Synonym, ...] = ...,
        fixed_at_creation: bool = ...,
    ) -> ConfigKey: ...


def _row(
    type_: ConfigType,
    name: str,
    default: ParsedValue,
    doc: str,
    importance: Importance = MEDIUM,
    *,
    check: Validator | None = None,
    update: Update = Update.READ_ONLY,
    has_effect: bool = True,
    limits: Limit = Limit.NONE,
    synonyms: tuple[Synonym, ...] = (),
    fixed_at_creation: bool = False,
) -> ConfigKey:
    valid = check.description if isinstance(check, Check) else ""
    return ConfigKey(
        name,
        type_,
        default,
        doc,
        importance,
        check,
        valid,
        update,
        has_effect,
        limits,
        synonyms,
        fixed_at_creation,
    )


boolean: Row = partial(_row, ConfigType.BOOLEAN)
string: Row = partial(_row, ConfigType.STRING)
int32: Row = partial(_row, ConfigType.INT)
int16: Row = partial(_row, ConfigType.SHORT)
int64: Row = partial(_row, ConfigType.LONG)
double: Row = partial(_row, ConfigType.DOUBLE)
list_: Row = partial(_row, ConfigType.LIST)
class_: Row = partial(_row, ConfigType.CLASS)
password: Row = partial(_row, ConfigType.PASSWORD)
