r"""Patterns of transactional ids (ListTransactions 2), matched in limited time. Pure.

Kafka's brokers use RE2's syntax. Python's regular expressions may try very many combinations (backtracking),
so one pattern could block a broker. Therefore only a part of the syntax is supported. This part needs no
backtracking. It consists of literal characters, ``\`` before a special character, ``.`` and ``.*``. Other
patterns are refused.
"""

from collections.abc import Callable
from typing import Final

from moldau.runtime import ErrorCode, KafkaError

_ANY_ONE: Final = ""
_ANY_MANY: Final = ".*"
_SPECIAL: Final = frozenset("\\.^$*+?{}[]()|")


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Returns a function that checks whether a whole id matches the pattern. Raises
    INVALID_REGULAR_EXPRESSION."""
    if not pattern:
        return lambda name: True
    tokens = _tokens(pattern)
    return lambda name: _matches(tokens, name)


def _tokens(pattern: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(pattern):
        char, following = pattern[position], pattern[position + 1 : position + 2]
        position += 1
        if char == "\\" and following and not following.isalnum():
            tokens.append(following)
            position += 1
        elif char == "." and following == "*":
            tokens.append(_ANY_MANY)
            position += 1
        elif char == ".":
            tokens.append(_ANY_ONE)
        elif char in _SPECIAL:
            raise KafkaError(
                ErrorCode.invalid_regular_expression,
                f"patterns may have literals, '.' and '.*' only: {char!r} at {position - 1}",
            )
        else:
            tokens.append(char)
    return tokens


def _matches(tokens: list[str], name: str) -> bool:
    """Match the tokens. After a mismatch the function goes back to the last ``.*`` only. This is enough,
    because every earlier ``.*`` has matched as little as possible."""
    at = token = 0
    star = resume = -1
    while at < len(name):
        if token < len(tokens) and tokens[token] == _ANY_MANY:
            star, resume = token, at
            token += 1
        elif token < len(tokens) and tokens[token] in (_ANY_ONE, name[at]):
            at += 1
            token += 1
        elif star >= 0:
            resume += 1
            at, token = resume, star + 1
        else:
            return False
    return all(each == _ANY_MANY for each in tokens[token:])
