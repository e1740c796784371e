"""``tools/check_test_calls.py`` reports wrong calls in tests, and no other finding of mypy."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("check_test_calls", ROOT / "tools/check_test_calls.py")
assert SPEC is not None
assert SPEC.loader is not None
check_test_calls = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_test_calls)


def test_only_wrong_calls_and_missing_names_count() -> None:
    wrong = 'tests/test_a.py:3: error: Missing positional argument "b" in call to "f"  [call-arg]'
    missing = 'tests/test_a.py:4: error: Module "a" has no attribute "C"  [attr-defined]'
    untyped = 'tests/test_a.py:5: error: Argument 1 to "f" has incompatible type "str"  [arg-type]'
    note = 'tests/test_a.py:5: note: "f" defined here'
    assert check_test_calls.findings([wrong, untyped, note, missing]) == [wrong, missing]
