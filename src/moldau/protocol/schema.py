"""Declarations of messages: classes whose fields carry their wire types and versions.

A message class is the *superset* of all versions of a Kafka message. Each field lists the versions in which
it exists. Encoders and decoders for a version are compiled from these lists (see ``encoding`` and
``decoding``). Kafka's messages (generated from kio's schema), Kafka's records and Moldau's own messages are
all declared in the same form::

    @message
    class ExampleRequest(Message):
        API_KEY = 11699
        VERSIONS = "0-1"
        FLEXIBLE = "0+"
        topic_id: UUID = wire("uuid", default=ZERO_UUID)
        partitions: Sequence[int] = wire(["int32"], default=())
        rack: str | None = wire("string", "1+", nullable="1+", default=None)
        cluster_id: str | None = wire("string", nullable="0+", tag=0, default=None)

Kinds are Kafka's: ``int8 int16 int32 int64 uint16 uint32 float64 bool string bytes records uuid``, the name
``error_code`` (an int16 that is an ``ErrorCode``) and message classes. A list with a single kind declares an
array.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, dataclass_transform
from uuid import UUID

from moldau.runtime import ErrorCode
from moldau.runtime.buffers import Buffer

ZERO_UUID = UUID(int=0)

Records: TypeAlias = Buffer | Sequence[Buffer] | None
"""Record batches. They are in a single buffer, or in several buffers that are sent one after another.
Decoding returns a memoryview of the input."""


class VersionRange(NamedTuple):
    """Versions from ``min`` to ``max``, including ``max``. The range is empty when ``max < min``."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max


VERSION_MAX = 32767
_NO_VERSIONS = VersionRange(0, -1)


@functools.cache
def parse_versions(text: str) -> VersionRange:
    """Read Kafka's notation: ``"3-13"``, ``"9+"``, ``"5"`` or ``"none"``."""
    if text == "none":
        return _NO_VERSIONS
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), VERSION_MAX)
    first, _, last = text.partition("-")
    return VersionRange(int(first), int(last or first))


class Message:
    """Base of all messages.

    Messages are values, and the type checker refuses assignments to their fields. They are not frozen at run
    time, because building a frozen dataclass takes four times as long and the decoders build millions of
    messages.

    Sequences are compared by content. They may be tuples (from decoders) or lists (from handlers).
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[str] = "0+"
    FLEXIBLE: ClassVar[str] = "none"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine == theirs:
                continue
            if not (isinstance(mine, list | tuple) and isinstance(theirs, list | tuple)):
                return False
            if tuple(mine) != tuple(theirs):
                return False
        return True

    def __hash__(self) -> int:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        return hash(tuple(tuple(value) if isinstance(value, list) else value for value in values))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__name__}({values})"


M = TypeVar("M", bound=Message)
FieldKind: TypeAlias = str | type[Message]


class Wire(NamedTuple):
    """Wire format of a field, as ``wire`` declares it."""

    kind: FieldKind
    array: bool
    versions: str
    nullable: str
    tag: int | None
    tagged: str


def wire(
    kind: FieldKind | list[str] | list[type[M]],
    versions: str = "0+",
    *,
    default: Any = dataclasses.MISSING,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    """Declare a field: its kind (in a list for an array) and the versions in which it exists.

    ``nullable`` are the versions in which the field may be null. With ``tag`` it is a tagged field in the
    versions ``tagged`` (all versions by default). Fields must be declared in the order of the wire.
    """
    array = isinstance(kind, list)
    single = kind[0] if isinstance(kind, list) else kind
    spec = Wire(single, array, versions, nullable, tag, tagged or ("none" if tag is None else "0+"))
    return dataclasses.field(default=default, metadata={"wire": spec})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(wire,))
def message(cls: type[M]) -> type[M]:
    """Make a message class from a declaration. Equality, hash and repr are shared to keep imports fast."""
    # The docstring is given explicitly. Otherwise dataclass would make a docstring from the signature, which
    # takes half of the time of an import.
    cls.__doc__ = cls.__doc__ or cls.__name__
    declared = dataclasses.dataclass(
        init=False, eq=False, repr=False, slots=True, kw_only=True, match_args=False
    )
    made = declared(cls)
    _set_constructor(made, _first_constructor)
    return made


def _first_constructor(message: Message, **values: Any) -> None:
    """Compile the class's own constructor at its first use, because most of the 400 classes are never
    used.
    """
    made = type(message)
    _set_constructor(made, _compiled_constructor(made))
    made.__init__(message, **values)


def _compiled_constructor(made: type[Message]) -> Callable[..., None]:
    """Compile a constructor as ``dataclass`` does, with keyword arguments only."""
    fields = dataclasses.fields(made)
    defaults: dict[str, Any] = {f"_{field.name}": field.default for field in fields}
    arguments = "".join(
        f", {field.name}" + ("" if field.default is dataclasses.MISSING else f"=_{field.name}")
        for field in fields
    )
    lines = [f"    self.{field.name} = {field.name}" for field in fields]
    source = "\n".join([f"def __init__(self{', *' if fields else ''}{arguments}):", *(lines or ["    pass"])])
    exec(source, defaults)
    constructor: Callable[..., None] = defaults["__init__"]
    constructor.__qualname__ = f"{made.__qualname__}.__init__"
    return constructor


def _set_constructor(made: type[Message], constructor: Callable[..., None]) -> None:
    setattr(made, "__init__", constructor)  # noqa: B010 - type checkers know the constructor of the fields


class FieldLayout(NamedTuple):
    """A field in one version of its message."""

    name: str
    kind: FieldKind
    array: bool
    nullable: bool
    tag: int | None
    default: Any


class Layout(NamedTuple):
    """A message class in one version. It has the fields in wire order, the tagged fields by tag, and the
    absent fields."""

    fields: tuple[FieldLayout, ...]
    tagged: tuple[FieldLayout, ...]
    absent: tuple[FieldLayout, ...]


_IMPLICIT: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": ZERO_UUID,
    "bool": False,
    "float64": 0.0,
    "error_code": ErrorCode.none,
}


def implicit_default(kind: FieldKind, array: bool) -> Any:
    """Kafka's default of a field that declares no default."""
    if array:
        return ()
    if isinstance(kind, str):
        return _IMPLICIT.get(kind, 0)
    return kind(**{field.name: field_default(field) for field in dataclasses.fields(kind)})


def field_default(field: dataclasses.Field[Any]) -> Any:
    """The default of a declared field. It is the declared default or Kafka's default."""
    if field.default is not dataclasses.MISSING:
        return field.default
    spec: Wire = field.metadata["wire"]
    return implicit_default(spec.kind, spec.array)


def layout(cls: type[Message], version: int, flexible: bool) -> Layout:
    """Return the layout of ``cls`` for ``version`` of the top-level message to which ``cls`` belongs."""
    regular: list[FieldLayout] = []
    tagged: list[FieldLayout] = []
    absent: list[FieldLayout] = []
    for field in dataclasses.fields(cls):
        spec: Wire = field.metadata["wire"]
        present = version in parse_versions(spec.versions)
        tag = spec.tag if flexible and present and version in parse_versions(spec.tagged) else None
        nullable = version in parse_versions(spec.nullable)
        at = FieldLayout(field.name, spec.kind, spec.array, nullable, tag, field_default(field))
        (absent if not present else regular if tag is None else tagged).append(at)
    return Layout(tuple(regular), tuple(sorted(tagged, key=lambda at: at.tag or 0)), tuple(absent))


def is_flexible(cls: type[Message], version: int) -> bool:
    """Whether ``version`` of a top-level message has compact lengths and tagged fields (KIP-482)."""
    return version in parse_versions(cls.FLEXIBLE)
