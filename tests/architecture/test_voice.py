"""``tools/check_voice.py`` finds vague docstrings and words to avoid. Two classes with the same name but
different meanings are an error."""

import importlib.util
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("check_voice", ROOT / "tools/check_voice.py")
assert SPEC is not None
assert SPEC.loader is not None
check_voice = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_voice)

SOURCE = '''"""What this is."""

LIMIT = 1
"""Those that wait."""


class Whole:
    """Whole batches; the largest of late."""

    def size(self):
        """The size in bytes."""
        return "What a string is"
'''


def test_a_vague_docstring_and_a_word_to_avoid_are_named_with_their_line() -> None:
    assert list(check_voice.riddles("one.py", SOURCE)) == [
        "one.py:1: begins with a riddle: What this is.",
        "one.py:4: begins with a riddle: Those that wait.",
        "one.py:8: 'of late': write recently, over the last minute",
    ]


def test_classes_of_a_module_are_named_with_their_line() -> None:
    assert list(check_voice.class_names("one.py", SOURCE)) == [("Whole", "one.py:7")]


def test_a_class_name_with_two_meanings_is_an_error() -> None:
    places = {"Turn": ["a.py:1", "b.py:7"], "Whole": ["c.py:2"]}
    assert list(check_voice.double_names(places)) == ["class Turn has 2 meanings: a.py:1, b.py:7"]


def test_warnings_do_not_fail_the_check() -> None:
    done = subprocess.run(
        [sys.executable, "tools/check_voice.py"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "warnings about words and folders" in done.stdout.splitlines()[-1]
