"""``tools/check_defaults.py`` finds code that replaces an empty object of the caller by a default."""

import ast
from types import ModuleType

CLASSES = """
class Gate:
    def __len__(self): ...

class Clock:
    def now(self): ...
"""


def found(check_defaults: ModuleType, code: str) -> list[str]:
    return list(check_defaults.findings({"m.py": ast.parse(CLASSES), "n.py": ast.parse(code)}))


def test_a_default_for_an_object_with_a_length_is_refused(check_defaults: ModuleType) -> None:
    assert found(check_defaults, "gate = given or Gate()") == [
        "n.py:1: given or Gate() loses an empty object"
    ]
    assert found(check_defaults, "gate = given or own or m.Gate(1)")


def test_other_defaults_are_accepted(check_defaults: ModuleType) -> None:
    assert not found(check_defaults, "clock = given or Clock()")
    assert not found(check_defaults, "gate = Gate() if given is None else given")
    assert not found(check_defaults, "gate = Gate(1) or other")
