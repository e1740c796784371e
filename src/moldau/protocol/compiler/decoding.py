"""Compiles a message class and a version into a decoding function for this version only.

Moldau has its own decoders and does not use kio's readers with an adapter, for three reasons. First, kio's
``timedelta`` and ``datetime`` cannot represent every legal value. An int64 of milliseconds has a larger range
than these types. In some fields kio reads -1 as "none", and in other fields kio refuses -1. Second, kio
copies record batches. Third, the adapter was slower, because building kio's object and copying it into
Moldau's object costs as much as parsing. The tests compare the results with kio's results, version by
version.

Sizes in the input are checked before memory is allocated. The length of an array or string is checked against
the number of bytes that are left. The length of an array is also checked against the memory limit of the
message (see ``costs``).
"""

from collections.abc import Callable
from struct import Struct, calcsize, unpack_from
from struct import error as StructError
from typing import Any, TypeVar

from moldau.protocol.compiler.primitives import (
    ERROR_CODES,
    FIXED_FORMATS,
    UUIDS,
    continue_uvarint,
    read_uvarint,
    skip_tagged_fields,
)
from moldau.protocol.costs import TAGGED_FIELD_COST, UNBOUNDED, item_cost
from moldau.protocol.decoding_errors import ParsedSizeError, ProtocolError
from moldau.protocol.schema import FieldLayout, Layout, Message, is_flexible, layout
from moldau.runtime.buffers import Buffer

Decoder = Callable[[memoryview, int, int, int], tuple[Any, int]]
M = TypeVar("M", bound=Message)

STRING_BYTES_MAX = 32767
"""Kafka's limit on a string's length. It also applies when the length field would allow a longer string."""

_decoders: dict[tuple[type[Message], int], Decoder] = {}


def decoder(cls: type[Message], version: int) -> Decoder:
    """Return the decoder of ``version`` of a top-level message.

    The decoder's arguments are (view, position, end, memory limit in bytes). Its result is (message, new
    position).

    The decoder raises any of Python's errors on malformed bytes. ``decode`` and ``decode_from`` convert these
    errors to ProtocolError.
    """
    found = _decoders.get((cls, version))
    if found is None:
        found = _decoders[cls, version] = compile_decoder(cls, version)
    return found


def decode_from(
    cls: type[M], version: int, buffer: Buffer, position: int = 0, left: int = UNBOUNDED
) -> tuple[M, int]:
    """Decode a message that starts at ``position``. Returns the message and the position after it.

    Raises ParsedSizeError when the message would take more than ``left`` bytes of memory.
    """
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    try:
        decoded: tuple[M, int] = decoder(cls, version)(view, position, len(view), left)
    except (StructError, IndexError, ValueError) as error:
        raise ProtocolError(f"{cls.__name__} v{version}: {error}") from error
    except ParsedSizeError as error:
        raise ParsedSizeError(f"{cls.__name__} v{version}: {error}", error.excess_bytes) from error
    except ProtocolError as error:
        raise ProtocolError(f"{cls.__name__} v{version}: {error}") from error
    return decoded


def decode(cls: type[M], version: int, buffer: Buffer) -> M:
    """Decode a message that fills ``buffer``. Its records are views of the buffer; all other values are
    copied."""
    message, position = decode_from(cls, version, buffer)
    if position != len(buffer):
        raise ProtocolError(f"{cls.__name__} v{version}: {len(buffer) - position} bytes are left over")
    return message


def decode_leading(cls: type[M], version: int, buffer: Buffer, left: int = UNBOUNDED) -> M:
    """Decode a message at the start of ``buffer``. Bytes after the message are ignored.

    Requests need this rule. If librdkafka requests all topics with Metadata 13, it sends three bytes too
    many, and Kafka ignores these bytes.
    """
    return decode_from(cls, version, buffer, 0, left)[0]


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    """Compile the decoder. ``decoder`` caches the result."""
    namespace: dict[str, Any] = {
        "new": object.__new__,
        "ParsedSizeError": ParsedSizeError,
        "ProtocolError": ProtocolError,
        "ERROR_CODES": ERROR_CODES,
        "UUIDS": UUIDS,
        "continue_uvarint": continue_uvarint,
        "read_uvarint": read_uvarint,
        "skip_tagged_fields": skip_tagged_fields,
        "unpack_from": unpack_from,
    }
    source = _DecoderSource(version, is_flexible(cls, version), namespace)
    source.struct(cls, "message")
    source.flush()
    lines = ["def decode(buffer, p, end, left):", *source.lines, "    return message, p"]
    exec(compile("\n".join(lines), f"<decode {cls.__name__} v{version}>", "exec"), namespace)
    function: Decoder = namespace["decode"]
    return function


class _DecoderSource:
    """The source lines of a decoding function, and the fixed-size fields that must still be unpacked
    together."""

    def __init__(self, version: int, flexible: bool, namespace: dict[str, Any]) -> None:
        self.version = version
        self.flexible = flexible
        self.namespace = namespace
        self.depth = 1
        self.lines: list[str] = []
        self._run: list[tuple[str, str]] = []
        self._after_run: list[str] = []

    def line(self, text: str) -> None:
        self.flush()
        self.lines.append("    " * self.depth + text)

    def constant(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def variable(self, prefix: str) -> str:
        return self.constant(prefix, None)

    def fixed(self, struct_format: str, target: str, after: str = "") -> None:
        self._run.append((struct_format, target))
        if after:
            self._after_run.append(after)

    def flush(self) -> None:
        if not self._run:
            return
        formats = "".join(item for item, _ in self._run)
        targets = ", ".join(target for _, target in self._run)
        after = self._after_run
        self._run, self._after_run = [], []
        name = "unpack_" + formats.replace("?", "t")
        self.namespace.setdefault(name, Struct(">" + formats).unpack_from)
        indent = "    " * self.depth
        self.lines.append(f"{indent}{targets}, = {name}(buffer, p); p += {calcsize('>' + formats)}")
        self.lines += [indent + text for text in after]

    def size(self, short: bool, nullable: bool, what: str) -> str:
        """Add lines that read a length into a new variable. Returns the name of the variable, which is the
        size, or -1 for null. The lines refuse null unless the field is nullable."""
        size = self.variable("size")
        if self.flexible:
            self.line(f"{size} = buffer[p]; p += 1")
            self.line(f"if {size} > 127: {size}, p = continue_uvarint(buffer, p, {size})")
            self.line(f"{size} -= 1")
        else:
            self.fixed("h" if short else "i", size)
        if not nullable:
            self.line(f"if {size} < 0: raise ProtocolError('{what} is null')")
        return size

    def struct(self, cls: type[Message], target: str) -> None:
        plan = layout(cls, self.version, self.flexible)
        self.line(f"{target} = new({self.constant('class', cls)})")
        for field in (*plan.absent, *plan.tagged):
            self.line(f"{target}.{field.name} = {self.constant('default', field.default)}")
        for field in plan.fields:
            self.field(field, f"{target}.{field.name}")
        if self.flexible:
            self._tagged(plan, target)

    def field(self, field: FieldLayout, target: str) -> None:
        if field.array:
            self._array(field, target)
        elif not isinstance(field.kind, str):
            self._nested(field, field.kind, target)
        elif field.kind == "error_code":
            raw = self.variable("raw")
            self.fixed("h", raw, f"{target} = ERROR_CODES[{raw}]")
        elif field.kind == "uuid":
            raw = self.variable("raw")
            self.fixed("16s", raw, f"{target} = UUIDS[{raw}]")
        elif field.kind in FIXED_FORMATS:
            self.fixed(FIXED_FORMATS[field.kind], target)
        else:
            self._sized(field, target)

    def _nested(self, field: FieldLayout, cls: type[Message], target: str) -> None:
        value = self.variable("struct")
        if not field.nullable:
            self.struct(cls, value)
            self.line(f"{target} = {value}")
            return
        present = self.variable("present")
        self.fixed("b", present)
        self.line(f"if {present} < {0 if field.tag is None else 1}: {target} = None")
        self.line("else:")
        self.depth += 1
        self.struct(cls, value)
        self.line(f"{target} = {value}")
        self.depth -= 1

    def _sized(self, field: FieldLayout, target: str) -> None:
        size = self.size(field.kind == "string", field.nullable, field.name)
        if field.nullable:
            self.line(f"if {size} < 0: {target} = None")
            self.line("else:")
            self.depth += 1
        stop = self.variable("stop")
        self.line(f"{stop} = p + {size}")
        if field.kind == "string" and self.flexible:
            self.line(f"if {size} > {STRING_BYTES_MAX}: raise ProtocolError('{field.name} is too long')")
        self.line(f"if {stop} > end: raise ProtocolError('{field.name} runs past the end')")
        value = {
            "string": f"str(buffer[p:{stop}], 'utf-8')",
            "bytes": f"bytes(buffer[p:{stop}])",
            "records": f"buffer[p:{stop}]",
        }[str(field.kind)]
        self.line(f"{target} = {value}; p = {stop}")
        if field.nullable:
            self.depth -= 1

    def _array(self, field: FieldLayout, target: str) -> None:
        size = self.size(False, field.nullable, field.name)
        if field.nullable:
            self.line(f"if {size} < 0: {target} = None")
            self.line("else:")
            self.depth += 1
        if isinstance(field.kind, str) and field.kind in FIXED_FORMATS:
            self._fixed_array(field, field.kind, size, target)
        else:
            self._item_array(field, size, target)
        if field.nullable:
            self.depth -= 1

    def _charge(self, field: FieldLayout, size: str) -> None:
        self.line(f"left -= {item_cost(field, self.version, self.flexible)} * {size}")
        self.line(f"if left < 0: raise ParsedSizeError('{field.name} has too many items', -left)")

    def _fixed_array(self, field: FieldLayout, kind: str, size: str, target: str) -> None:
        item_format = FIXED_FORMATS[kind]
        width = calcsize(">" + item_format)
        stop = self.variable("stop")
        self.line(f"{stop} = p + {width} * {size}")
        self.line(f"if {stop} > end: raise ProtocolError('{field.name} runs past the end')")
        self._charge(field, size)
        if kind == "uuid":
            value = f"tuple([UUIDS[bytes(buffer[i:i + 16])] for i in range(p, {stop}, 16)])"
        elif kind == "error_code":
            value = f"tuple([ERROR_CODES[raw] for raw in unpack_from(f'>{{{size}}}h', buffer, p)])"
        else:
            value = f"unpack_from(f'>{{{size}}}{item_format}', buffer, p)"
        self.line(f"{target} = {value}; p = {stop}")

    def _item_array(self, field: FieldLayout, size: str, target: str) -> None:
        # Every item takes at least one byte, so an array cannot have more items than bytes that are left.
        # Because of this check, a wrong length cannot cause a long loop or a large allocation.
        self.line(f"if {size} > end - p: raise ProtocolError('{field.name} runs past the end')")
        self._charge(field, size)
        items, item = self.variable("items"), self.variable("item")
        self.line(f"{items} = []")
        self.line(f"for _ in range({size}):")
        self.depth += 1
        if isinstance(field.kind, str):
            self._sized(field._replace(array=False, nullable=False), item)
        else:
            self.struct(field.kind, item)
        self.line(f"{items}.append({item})")
        self.depth -= 1
        self.line(f"{target} = tuple({items})")

    def _tagged(self, plan: Layout, target: str) -> None:
        count = self.variable("count")
        self.line(f"{count} = buffer[p]; p += 1")
        if not plan.tagged:
            self.line(f"if {count}: p, left = skip_tagged_fields(buffer, p, {count}, end, left)")
            return
        self.line(f"if {count}:")
        self.depth += 1
        self.line(f"if {count} > 127: {count}, p = continue_uvarint(buffer, p, {count})")
        self.line(f"left -= {count} * {TAGGED_FIELD_COST}")
        self.line("if left < 0: raise ParsedSizeError('there are too many tagged fields', -left)")
        tag, stop = self.variable("tag"), self.variable("stop")
        self.line(f"for _ in range({count}):")
        self.depth += 1
        self.line(f"{tag}, p = read_uvarint(buffer, p); {stop}, p = read_uvarint(buffer, p); {stop} += p")
        self.line(f"if {stop} > end: raise ProtocolError('a tagged field runs past the end')")
        for field in plan.tagged:
            self.line(f"if {tag} == {field.tag}:")
            self.depth += 1
            self.field(field, f"{target}.{field.name}")
            self.line(f"if p != {stop}: raise ProtocolError('{field.name} has another size than it says')")
            self.line("continue")
            self.depth -= 1
        self.line(f"p = {stop}")
        self.depth -= 2
