r"""Patterns of transactional ids (ListTransactions 2), matched in limited time. Pure.

Kafka's brokers use RE2's syntax. Python's regular expressions may try very many combinations (backtracking),
so one pattern could block a broker. This module supports only a part of RE2's syntax. It makes an automaton
that matches without backtracking (Glushkov's construction). Each use of a character in the pattern is a
*position*, and the state of a match is the set of positions that have matched the last character.

The supported syntax is: literal characters, ``.``, classes (``[a-z]``, ``[^,]``, ``\d``, ``\w``, ``\s`` and
their negations), groups, alternatives, ``*``, ``+``, ``?``, ``{2,5}``, and ``^`` and ``$`` at the ends of the
pattern. Other patterns are refused: flags, assertions, Unicode classes and back references.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from moldau.runtime import ErrorCode, KafkaError

POSITIONS_MAX: Final = 500
"""Maximum number of positions, after repetitions such as ``{2,5}`` were expanded."""
STEPS_MAX: Final = 10_000
"""Maximum number of steps in which an automaton is made."""
DEPTH_MAX: Final = 50
"""Maximum depth of groups."""
REPETITIONS_MAX: Final = 1_000
"""RE2's maximum of a count in ``{2,5}``."""
_CACHED_MAX: Final = 10_000
"""Maximum number of computed transitions that an automaton caches."""

_Characters = Callable[[str], bool]

_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_NAMED: Final = {"d": _DIGITS, "w": _DIGITS | _LETTERS | {"_"}, "s": frozenset("\t\n\f\r ")}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Returns a function that checks whether a whole id matches the pattern. Raises
    INVALID_REGULAR_EXPRESSION."""
    if not pattern:
        return lambda name: True
    automaton = _Automaton()
    return automaton.matcher(_PatternParser(pattern, automaton).parse())


class _AutomatonPart(NamedTuple):
    """A part of an automaton. ``first`` and ``last`` are bit sets: the positions at which a match of the part
    may begin and end."""

    is_optional: bool
    first: int
    last: int


_EMPTY: Final = _AutomatonPart(True, 0, 0)
_PatternNode = Callable[[], _AutomatonPart]
"""A part of a pattern. Each call adds the part to the automaton again, because a part may be repeated."""


class _Automaton:
    def __init__(self) -> None:
        self._characters: list[_Characters] = []
        self._following: list[int] = []
        self._steps = 0

    def position(self, characters: _Characters) -> _AutomatonPart:
        """Add a position that matches one character."""
        self._step()
        bit = 1 << len(self._characters)
        self._characters.append(characters)
        self._following.append(0)
        if len(self._characters) > POSITIONS_MAX:
            _refuse("it is too large")
        return _AutomatonPart(False, bit, bit)

    def joined(self, before: _AutomatonPart, behind: _AutomatonPart) -> _AutomatonPart:
        """A part that matches ``before``, and ``behind`` directly after it."""
        self._step()
        self._link(before.last, behind.first)
        return _AutomatonPart(
            before.is_optional and behind.is_optional,
            before.first | (behind.first if before.is_optional else 0),
            behind.last | (before.last if behind.is_optional else 0),
        )

    def either(self, one: _AutomatonPart, other: _AutomatonPart) -> _AutomatonPart:
        self._step()
        return _AutomatonPart(
            one.is_optional or other.is_optional, one.first | other.first, one.last | other.last
        )

    def many(self, part: _AutomatonPart) -> _AutomatonPart:
        """A part that occurs any number of times, or not at all."""
        self._step()
        self._link(part.last, part.first)
        return part._replace(is_optional=True)

    def _link(self, last: int, first: int) -> None:
        for position in _bits(last):
            self._following[position] |= first

    def _step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            _refuse("it is too large")

    def matcher(self, whole: _AutomatonPart) -> Callable[[str], bool]:
        characters, following = self._characters, self._following
        accepting: dict[str, int] = {}
        transitions: dict[tuple[int, str], int] = {}

        def hit(possible: int, char: str) -> int:
            """Return those positions in the bit set ``possible`` that match ``char``."""
            found = accepting.get(char)
            if found is None:
                if len(accepting) > _CACHED_MAX:
                    accepting.clear()
                found = sum(1 << at for at, accepts in enumerate(characters) if accepts(char))
                accepting[char] = found
            return possible & found

        def after(state: int, char: str) -> int:
            key = (state, char)
            found = transitions.get(key)
            if found is None:
                if len(transitions) > _CACHED_MAX:
                    transitions.clear()
                possible = 0
                for position in _bits(state):
                    possible |= following[position]
                found = transitions[key] = hit(possible, char)
            return found

        def matches(name: str) -> bool:
            if not name:
                return whole.is_optional
            state = hit(whole.first, name[0])
            for char in name[1:]:
                if not state:
                    return False
                state = after(state, char)
            return bool(state & whole.last)

        return matches


class _PatternParser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str, automaton: _Automaton) -> None:
        self._pattern = pattern
        self._automaton = automaton
        self._at = 0
        self._depth = 0

    def parse(self) -> _AutomatonPart:
        node = self._alternatives()
        if self._at < len(self._pattern):
            self._refuse_here()
        return node()

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            _refuse("it ends too early")
        self._at += 1
        return char

    def _accept(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _refuse_here(self) -> NoReturn:
        _refuse(f"{self._pattern[self._at : self._at + 10]!r} at {self._at} is not supported")

    def _alternatives(self) -> _PatternNode:
        nodes = [self._sequence()]
        while self._accept("|"):
            nodes.append(self._sequence())
        return self._folded(nodes, self._automaton.either)

    def _sequence(self) -> _PatternNode:
        nodes: list[_PatternNode] = [lambda: _EMPTY]
        while self._depth == 0 and self._accept("^"):
            pass
        while (char := self._peek()) not in ("", "|", ")"):
            if char == "$" and self._depth == 0 and self._pattern[self._at + 1 : self._at + 2] in ("", "|"):
                self._at += 1
                break
            nodes.append(self._repeated())
        return self._folded(nodes, self._automaton.joined)

    def _folded(
        self, nodes: list[_PatternNode], join: Callable[[_AutomatonPart, _AutomatonPart], _AutomatonPart]
    ) -> _PatternNode:
        def node() -> _AutomatonPart:
            whole = nodes[0]()
            for each in nodes[1:]:
                whole = join(whole, each())
            return whole

        return node

    def _repeated(self) -> _PatternNode:
        node, automaton = self._atom(), self._automaton
        counts = self._counts()
        if counts is None:
            return node
        self._accept("?")  # greedy and lazy repetitions match the same whole ids
        if self._peek() in ("*", "+", "?") or self._counts() is not None:
            self._refuse_here()
        low, high = counts

        def repeated() -> _AutomatonPart:
            whole = _EMPTY
            for _ in range(low if high is not None else max(0, low - 1)):
                whole = automaton.joined(whole, node())
            if high is None:
                last = node()
                many = automaton.many(last)
                return automaton.joined(
                    whole, many if low == 0 else many._replace(is_optional=last.is_optional)
                )
            rest = _EMPTY
            for _ in range(high - low):
                rest = automaton.either(_EMPTY, automaton.joined(node(), rest))
            return automaton.joined(whole, rest)

        return repeated

    def _counts(self) -> tuple[int, int | None] | None:
        """Read the lowest and the highest number of repetitions. ``None`` if there is no repetition here."""
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(sign):
                return counts
        if self._peek() != "{":
            return None
        end = self._pattern.find("}", self._at, self._at + 20)
        low, comma, high = self._pattern[self._at + 1 : end].partition(",")
        is_count = low.isdecimal() and low.isascii() and (not high or (high.isdecimal() and high.isascii()))
        if end < 0 or not is_count:
            return None  # RE2 reads such a brace as a character
        self._at = end + 1
        if max(len(low), len(high)) > len(str(REPETITIONS_MAX)):
            _refuse("a repetition is too large")
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > REPETITIONS_MAX or (most is not None and most < least):
            _refuse("a repetition is too large")
        return least, most

    def _atom(self) -> _PatternNode:
        start = self._at
        if self._counts() is not None or self._peek() in ("^", "$"):
            self._at = start
            self._refuse_here()
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            characters = self._class()
        elif char == ".":
            characters = _other_than(frozenset("\n"))
        elif char == "\\":
            characters = self._escaped()
        else:
            characters = frozenset(char).__contains__
        return lambda: self._automaton.position(characters)

    def _group(self) -> _PatternNode:
        if self._peek() == "?" and not self._accept("?:"):
            self._refuse_here()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            _refuse("it has too many groups inside of each other")
        node = self._alternatives()
        if not self._accept(")"):
            _refuse("a group has no end")
        self._depth -= 1
        return node

    def _escaped(self) -> _Characters:
        """The characters of an escape. The backslash has been read."""
        char = self._next()
        if char.lower() in _NAMED:
            named = _NAMED[char.lower()]
            return named.__contains__ if char.islower() else _other_than(named)
        return frozenset(self._control(char)).__contains__

    def _control(self, char: str) -> str:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if not char.isascii() or char.isalnum():
            self._at -= 2
            self._refuse_here()
        return char

    def _class(self) -> _Characters:
        """Read a class. Its bracket has been read."""
        negated = self._accept("^")
        parts: list[_Characters] = []
        # A bracket at the beginning of a class is a character.
        while (char := self._next()) != "]" or not parts:
            parts.append(self._class_part(char))
        return lambda char: any(part(char) for part in parts) is not negated

    def _class_part(self, first: str) -> _Characters:
        if first == "[" and self._peek() == ":":
            self._refuse_here()
        if first == "\\":
            if self._peek().lower() in _NAMED and self._peek():
                return self._escaped()
            first = self._control(self._next())
        following = self._pattern[self._at + 1 : self._at + 2]
        if self._peek() != "-" or following in ("", "]"):
            return frozenset(first).__contains__
        self._at += 1
        last = self._next()
        if last == "\\":
            last = self._control(self._next())
        if last < first:
            _refuse(f"the class has the range {first}-{last}")
        return lambda char: first <= char <= last


def _other_than(characters: frozenset[str]) -> _Characters:
    return lambda char: char not in characters


def _bits(bits: int) -> list[int]:
    """The positions of a bit set."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


def _refuse(reason: str) -> NoReturn:
    raise KafkaError(ErrorCode.invalid_regular_expression, f"the pattern cannot be used: {reason}")
