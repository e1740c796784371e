"""Compiles a message class and a version into a straight-line encoding function.

Adjacent fixed-size fields become a single ``struct`` call, an array of numbers becomes another call, and
strings are joined at the end. Record batches are passed through unchanged, between the joined parts.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from moldau.protocol.compiler.primitives import (
    FIXED_FORMATS,
    SINGLE_BYTES,
    CompactPackers,
    LegacyPackers,
    uvarint,
)
from moldau.protocol.schema import FieldLayout, Layout, Message, is_flexible, layout
from moldau.runtime.buffers import Buffer

Encoder = Callable[[Any], list[Buffer]]
M = TypeVar("M", bound=Message)

_COMPACT_PACKERS: dict[str, CompactPackers] = {}
_LEGACY_PACKERS: dict[str, LegacyPackers] = {}
_PAD = "x"
_encoders: dict[tuple[type[Message], int], Encoder] = {}


def encoder(cls: type[Message], version: int) -> Encoder:
    """Return the encoder of ``version`` of a top-level message. The encoder returns the buffers of a
    message's body in order.

    A field that the version does not have is left out. If a value does not fit its field, or is null in a
    version without null, the encoder raises ``struct.error``, ``TypeError`` or ``AttributeError``. Such a
    value is a mistake of the caller.
    """
    found = _encoders.get((cls, version))
    if found is None:
        found = _encoders[cls, version] = compile_encoder(cls, version)
    return found


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """Compile the encoder. ``encoder`` caches the result."""
    namespace: dict[str, Any] = {"uvarint": uvarint, "SINGLE_BYTES": SINGLE_BYTES}
    source = _EncoderSource(version, is_flexible(cls, version), namespace)
    source.struct(cls, "message")
    source.flush()
    lines = ["def encode(message):", "    parts = []; add = parts.append"]
    if source.has_records:
        lines += [
            "    out = []",
            *source.lines,
            "    if parts: out.append(b''.join(parts))",
            "    return out",
        ]
    else:
        lines += [*source.lines, "    return [b''.join(parts)]"]
    exec(compile("\n".join(lines), f"<encode {cls.__name__} v{version}>", "exec"), namespace)
    function: Encoder = namespace["encode"]
    return function


class ArrayEncoders(NamedTuple):
    """Encoders of the parts of a message that contains an array of structs. With them, the array can be
    encoded in slices.

    The bytes of a message are the bytes of ``before``, then of ``length``, then of ``rows`` for each slice in
    order, then of ``after``.
    """

    before: Callable[[Any], bytes]
    length: Callable[[int], bytes]
    rows: Callable[[Any], bytes]
    after: Callable[[Any], bytes]


_array_encoders: dict[tuple[type[Message], int, bool, str], ArrayEncoders] = {}


def array_encoders(cls: type[Message], version: int, flexible: bool, array: str) -> ArrayEncoders:
    """Return the encoders of the parts of ``cls``, which contains ``array``, an array of structs. ``cls`` is
    a message, or a struct in a message."""
    found = _array_encoders.get((cls, version, flexible, array))
    if found is None:
        fields = layout(cls, version, flexible).fields
        at = [field.name for field in fields].index(array)
        kind = fields[at].kind
        assert not isinstance(kind, str), "an array of structs"

        def rows(source: _EncoderSource) -> None:
            source.line("for row in message:")
            source.depth += 1
            source.struct(kind, "row")
            source.flush()
            source.depth -= 1

        def after(source: _EncoderSource) -> None:
            source.some_fields(fields[at + 1 :], "message")
            if flexible:
                source.tagged_fields(cls, "message")

        found = _array_encoders[cls, version, flexible, array] = ArrayEncoders(
            _compile_piece(version, flexible, lambda source: source.some_fields(fields[:at], "message")),
            (lambda count: uvarint(count + 1)) if flexible else Struct(">i").pack,
            _compile_piece(version, flexible, rows),
            _compile_piece(version, flexible, after),
        )
    return found


def _compile_piece(
    version: int, flexible: bool, write: Callable[["_EncoderSource"], None]
) -> Callable[[Any], bytes]:
    namespace: dict[str, Any] = {"uvarint": uvarint, "SINGLE_BYTES": SINGLE_BYTES}
    source = _EncoderSource(version, flexible, namespace)
    write(source)
    source.flush()
    assert not source.has_records, "records are not copied into pieces"
    lines = ["def encode(message):", "    parts = []; add = parts.append", *source.lines]
    lines.append("    return b''.join(parts)")
    exec(compile("\n".join(lines), "<encode piece>", "exec"), namespace)
    function: Callable[[Any], bytes] = namespace["encode"]
    return function


class _EncoderSource:
    """The source lines of an encoding function, and the byte expressions that must still be added to
    ``parts``."""

    def __init__(self, version: int, flexible: bool, namespace: dict[str, Any], depth: int = 1) -> None:
        self.version = version
        self.flexible = flexible
        self.namespace = namespace
        self.depth = depth
        self.lines: list[str] = []
        self.has_records = False
        self._run: list[tuple[str, str]] = []
        self._chunks: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def constant(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def variable(self, prefix: str) -> str:
        return self.constant(prefix, None)

    # ``_chunks`` has the expressions that produce the message's bytes, in order.

    def fixed(self, struct_format: str, expression: str = "") -> None:
        self._run.append((struct_format, expression))

    def chunk(self, expression: str) -> None:
        self._close_run()
        self._chunks.append(expression)

    def _close_run(self) -> None:
        if not self._run:
            return
        formats = "".join(item for item, _ in self._run)
        arguments = [expression for item, expression in self._run if item != _PAD]
        self._run.clear()
        if not arguments:
            self._chunks.append(repr(bytes(len(formats))))
            return
        name = "pack_" + formats.replace("?", "t")
        self.namespace.setdefault(name, Struct(">" + formats).pack)
        self._chunks.append(f"{name}({', '.join(arguments)})")

    def flush(self) -> None:
        self._close_run()
        if len(self._chunks) == 1:
            self.line(f"add({self._chunks[0]})")
        elif self._chunks:
            self.line(f"parts += ({', '.join(self._chunks)})")
        self._chunks.clear()

    def length(self, name: str) -> None:
        """Add a length. In a flexible version ``name`` is the size plus one (0 is null). In other versions it
        is the size (or -1)."""
        if self.flexible:
            self.chunk(f"SINGLE_BYTES[{name}] if {name} < 128 else uvarint({name})")
        else:
            self.fixed("i", name)

    # Fields.

    def struct(self, cls: type[Message], owner: str) -> None:
        self.some_fields(layout(cls, self.version, self.flexible).fields, owner)
        if self.flexible:
            self.tagged_fields(cls, owner)

    def some_fields(self, fields: Iterable[FieldLayout], owner: str) -> None:
        for field in fields:
            self.field(field, f"{owner}.{field.name}")

    def tagged_fields(self, cls: type[Message], owner: str) -> None:
        self._tagged(layout(cls, self.version, self.flexible), owner)

    def field(self, field: FieldLayout, expression: str) -> None:
        if field.array:
            self._array(field, expression)
        elif not isinstance(field.kind, str):
            self._nested(field, field.kind, expression)
        elif field.kind == "records":
            self._records(field, expression)
        elif field.kind in FIXED_FORMATS:
            self.fixed(FIXED_FORMATS[field.kind], expression + (".bytes" if field.kind == "uuid" else ""))
        else:
            self._sized(field.kind, field.nullable, expression)

    def _nested(self, field: FieldLayout, cls: type[Message], expression: str) -> None:
        value = self.variable("struct")
        self.line(f"{value} = {expression}")
        if not field.nullable:
            self.struct(cls, value)
            return
        # A byte shows whether a nullable struct is present (KIP-893). In a tagged field, Kafka writes null as
        # 0.
        self.flush()
        null = b"\xff" if field.tag is None else b"\0"
        self.line(f"if {value} is None: add({null!r})")
        self.line("else:")
        self.depth += 1
        self.fixed("b", "1")
        self.struct(cls, value)
        self.flush()
        self.depth -= 1

    def _sized(self, kind: str, nullable: bool, expression: str) -> None:
        value, size = self.variable("value"), self.variable("size")
        encode = ".encode()" if kind == "string" else ""
        plus = " + 1" if self.flexible else ""
        if nullable:
            self.line(f"{value} = {expression}")
            self.line(f"if {value} is None: {value} = b''; {size} = {0 if self.flexible else -1}")
            encoded = f"{value} = {value}{encode}; " if encode else ""
            self.line(f"else: {encoded}{size} = len({value}){plus}")
        else:
            self.line(f"{value} = {expression}{encode}; {size} = len({value}){plus}")
        if self.flexible or kind == "bytes":
            self.length(size)
        else:
            self.fixed("h", size)
        self.chunk(value)

    def _records(self, field: FieldLayout, expression: str) -> None:
        self.has_records = True
        self.flush()
        value, size = self.variable("records"), self.variable("size")
        self.line(f"{value} = {expression}")
        null = "b'\\0'" if self.flexible else "b'\\xff\\xff\\xff\\xff'"
        self.line(f"if {value} is None: " + (f"add({null})" if field.nullable else "raise TypeError('null')"))
        self.line("else:")
        self.depth += 1
        self.line(
            f"if {value}.__class__ is list or {value}.__class__ is tuple: {size} = sum(map(len, {value}))"
        )
        self.line(f"else: {size} = len({value}); {value} = ({value},)")
        if self.flexible:
            self.line(f"add(uvarint({size} + 1))")
        else:
            self.namespace["pack_i"] = Struct(">i").pack
            self.line(f"add(pack_i({size}))")
        self.line(f"if {size}: out.append(b''.join(parts)); parts.clear(); out += {value}")
        self.depth -= 1

    def _array(self, field: FieldLayout, expression: str) -> None:
        items = self.variable("items")
        self.line(f"{items} = {expression}")
        if isinstance(field.kind, str) and field.kind in FIXED_FORMATS and field.kind != "uuid":
            self._fixed_array(FIXED_FORMATS[field.kind], field.nullable, items)
            return
        size = self.variable("size")
        plus, null = (" + 1", 0) if self.flexible else ("", -1)
        if field.nullable:
            self.line(f"{size} = {null} if {items} is None else len({items}){plus}")
        else:
            self.line(f"{size} = len({items}){plus}")
        self.length(size)
        items_or_none = f"{items} or ()" if field.nullable else items
        if field.kind == "uuid":
            self.chunk(f"b''.join([item.bytes for item in {items_or_none}])")
            return
        self.flush()
        item = self.variable("item")
        self.line(f"for {item} in {items_or_none}:")
        self.depth += 1
        if isinstance(field.kind, str):
            self._sized(field.kind, False, item)
        else:
            self.struct(field.kind, item)
        self.flush()
        self.depth -= 1

    def _fixed_array(self, item_format: str, nullable: bool, items: str) -> None:
        if self.flexible:
            packers: Any = _COMPACT_PACKERS.setdefault(item_format, CompactPackers(item_format))
            size, null = f"len({items}) + 1", b"\0"
        else:
            packers = _LEGACY_PACKERS.setdefault(item_format, LegacyPackers(item_format))
            size, null = f"len({items})", b"\xff\xff\xff\xff"
        name = "packers_" + item_format
        self.namespace[name] = packers
        length = self.variable("length")
        if nullable:
            self.line(f"{length} = 0 if {items} is None else {size}")
            self.chunk(f"{null!r} if {items} is None else {name}[{length}]({length}, *{items})")
        else:
            self.line(f"{length} = {size}")
            self.chunk(f"{name}[{length}]({length}, *{items})")

    def _tagged(self, plan: Layout, owner: str) -> None:
        if not plan.tagged:
            self.fixed(_PAD)
            return
        defaults = {field.name: self.constant("default", field.default) for field in plan.tagged}
        encode = self.constant("tagged", None)
        self.namespace[encode] = self._compile_tagged(plan, defaults)
        # Unset fields are usually the default objects themselves. Therefore values are compared only if the
        # objects differ.
        same = " and ".join(f"{owner}.{name} is {default}" for name, default in defaults.items())
        self.chunk(f"b'\\0' if {same} else {encode}({owner})")

    def _compile_tagged(self, plan: Layout, defaults: dict[str, str]) -> Callable[[Any], bytes]:
        source = _EncoderSource(self.version, True, self.namespace)
        for field in plan.tagged:
            value = f"message.{field.name}"
            source.line(f"if {_differs(field, value, defaults[field.name])}:")
            source.depth += 1
            source.line("parts = []; add = parts.append")
            source.field(field, value)
            source.flush()
            source.line("data = b''.join(parts)")
            source.line(f"fields.append({uvarint(field.tag or 0)!r} + uvarint(len(data)) + data)")
            source.depth -= 1
        lines = ["def encode_tagged(message):", "    fields = []", *source.lines]
        lines.append("    return uvarint(len(fields)) + b''.join(fields)")
        exec(compile("\n".join(lines), "<encode tagged>", "exec"), self.namespace)
        function: Callable[[Any], bytes] = self.namespace["encode_tagged"]
        return function


def _differs(field: FieldLayout, value: str, default: str) -> str:
    """Return an expression that is true when a tagged field must be written. An empty list counts as the
    default empty tuple."""
    if field.default is None:
        return f"{value} is not None"
    if field.array:
        return f"{value} is None or len({value})" if field.nullable else f"len({value})"
    return f"{value} != {default}"
