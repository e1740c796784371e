"""Valid requests for existing topics, brokers and groups, in which a few fields are changed."""

import random
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from moldau.protocol.schema import FieldLayout, Message, is_flexible, layout
from moldau.runtime import ErrorCode

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
EPOCH_WEIGHT = 4
"""Epochs are changed more often than other fields, because receivers remember them."""
_NOT_CHANGED = {"timeout_ms", "max_wait_ms"}
"""Fields that contain a time. With an extreme value in such a field, it would be correct that the request
waits for weeks."""


class ChangedRequests:
    """Builds requests from known values.

    ``known`` has the possible values of fields, as they are on the running node. The keys are the names of
    fields, or of a class and a field with a dot between them. The value of an array is a tuple or a single
    item. A field without known values gets a small value of its kind.
    """

    def __init__(self, chance: random.Random, known: Mapping[str, Sequence[Any]]) -> None:
        self._chance = chance
        self._known = known

    def request(self, cls: type[Message], version: int) -> Message:
        """A request with up to two changed fields."""
        seed = self._chance.random()
        counting = _Builder(random.Random(seed), self._known, version, is_flexible(cls, version), frozenset())
        counting.message(cls)
        numbers = [
            number
            for number, name in enumerate(counting.names)
            for _ in range(EPOCH_WEIGHT if name.endswith("epoch") else 1)
        ]
        wanted = min(self._chance.choice((0, 1, 1, 1, 1, 2)), len(numbers))
        changed = frozenset(self._chance.sample(numbers, wanted))
        builder = _Builder(random.Random(seed), self._known, version, is_flexible(cls, version), changed)
        return builder.message(cls)


class _Builder:
    """Builds one request. With the same seed, all fields that are not changed have the same values."""

    def __init__(
        self,
        chance: random.Random,
        known: Mapping[str, Sequence[Any]],
        version: int,
        flexible: bool,
        changed: frozenset[int],
    ) -> None:
        self._chance = chance
        self._known = known
        self._version = version
        self._flexible = flexible
        self._changed = changed
        self.names: list[str] = []
        """The fields that can be changed."""

    def message(self, cls: type[Message]) -> Message:
        fields = layout(cls, self._version, self._flexible)
        return cls(**{each.name: self._field(cls, each) for each in (*fields.fields, *fields.tagged)})

    def _field(self, cls: type[Message], field: FieldLayout) -> Any:
        number = len(self.names)
        # Each field has its own random numbers, so that a changed field does not affect the fields after it.
        chance, outer = random.Random(self._chance.random()), self._chance
        self._chance = chance
        value = self._plain(cls, field)
        self._chance = outer
        if field.name in _NOT_CHANGED:
            return value
        self.names.append(field.name)
        return self._other(field, value, chance) if number in self._changed else value

    def _plain(self, cls: type[Message], field: FieldLayout) -> Any:
        known = self._known.get(f"{cls.__name__}.{field.name}") or self._known.get(field.name)
        if known:
            value = self._chance.choice(known)
            return list(value) if isinstance(value, tuple) else [value] if field.array else value
        if not isinstance(field.kind, str):
            item = self.message(field.kind)
            return [item] if field.array else item
        value = {"string": "a", "bytes": b"", "records": b"", "bool": False, "float64": 1.0}.get(
            field.kind, 0
        )
        if field.kind == "uuid":
            value = UUID(int=77)
        elif field.kind == "error_code":
            value = ErrorCode.none
        return [value] if field.array else value

    def _other(self, field: FieldLayout, value: Any, chance: random.Random) -> Any:
        if field.nullable and chance.random() < 0.2:
            return None
        if field.array:
            if chance.random() < 0.3:
                return []
            return [*value, *value] if chance.random() < 0.7 else value * 40
        return value if not isinstance(field.kind, str) else extreme(field.kind, value, chance)


def extreme(kind: str, value: Any, chance: random.Random) -> Any:
    """A value of a kind of field: a boundary of the kind, or a value next to ``value``."""
    if kind in _BITS:
        most = (1 << _BITS[kind] - 1) - 1
        near = [max(-most - 1, min(most, (value or 0) + step)) for step in (-1, 1, 5)]
        return chance.choice([-1, 0, 1, most, most - 1, -most - 1, *near, *near])
    match kind:
        case "uint16":
            return chance.choice([0, 1, 65_535])
        case "uint32":
            return chance.choice([0, 1, 2**32 - 1])
        case "bool":
            return not value
        case "string":
            return chance.choice(["", "x" * 300, "../..", "\0", "-1", "é"])
        case "bytes" | "records":
            return chance.choice([b"", b"\0", bytes(value or b"")[:-1], b"\xff" * 16])
        case "uuid":
            return UUID(int=chance.choice([0, 1, 2, 2**128 - 1, chance.getrandbits(128)]))
        case "float64":
            return chance.choice([0.0, -1.0, float("inf"), float("nan")])
        case "error_code":
            return chance.choice(list(ErrorCode))
    raise ValueError(f"no values for {kind}")
