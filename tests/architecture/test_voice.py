"""``tools/check_voice.py`` finds vague docstrings and words to avoid. Two classes with the same name but
different meanings are an error."""

import fnmatch
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


def test_comments_and_names_are_checked() -> None:
    source = "# Nobody reads it.\nclass Judge:\n    def _take(self): ...\n    def take_snapshot(self): ...\n"
    assert list(check_voice.riddles("one.py", source)) == [
        "one.py:1: 'nobody': write no client, no other code, never",
        "one.py:2: 'Judge': write check",
        "one.py:3: '_take': write a verb that names the taken thing",
    ]


def test_classes_of_a_module_are_named_with_their_line() -> None:
    assert list(check_voice.type_names("one.py", SOURCE)) == [("Whole", "one.py:7")]


def test_type_aliases_of_a_module_are_named_and_values_are_not() -> None:
    source = "\n".join(
        (
            "class _Peer: ...",
            "Row = dict[str, int]",
            'Answer: TypeAlias = "Row | None"',
            "Call = Callable[[], None] | _Peer",
            "FLAGS = READ | WRITE",
            "FIRST = ROWS[0]",
            "limit = count",
        )
    )
    assert list(check_voice.type_names("one.py", source)) == [
        ("Peer", "one.py:1"),
        ("Row", "one.py:2"),
        ("Answer", "one.py:3"),
        ("Call", "one.py:4"),
    ]


def test_a_type_name_with_two_meanings_is_an_error() -> None:
    places = {"Turn": ["a.py:1", "b.py:7"], "Whole": ["c.py:2"]}
    assert list(check_voice.double_names(places)) == ["type Turn has 2 meanings: a.py:1, b.py:7"]


def sources_of(name: str, **importers: str) -> dict[str, str]:
    """A file with three lines, and the files that import it."""
    small = {name: '"""A file."""\n\nONE = 1\n'}
    return small | {f"src/moldau/{each}.py": f"{text}\n" for each, text in importers.items()}


def test_a_small_file_with_one_importer_is_named() -> None:
    (found,) = check_voice.small_files(
        sources_of("src/moldau/room/small.py", one="from moldau.room.small import ONE")
    )
    assert found.startswith("src/moldau/room/small.py has 3 lines, and only src/moldau/one.py imports it:")
    for text in ("from moldau.room import small", "import moldau.room.small"):
        assert len(list(check_voice.small_files(sources_of("src/moldau/room/small.py", one=text)))) == 1


def test_a_small_file_with_several_importers_stays() -> None:
    text = "from moldau.room.small import ONE"
    assert not list(check_voice.small_files(sources_of("src/moldau/room/small.py", one=text, two=text)))


def test_a_large_file_with_one_importer_stays() -> None:
    sources = sources_of("src/moldau/room/large.py", one="from moldau.room.large import ONE")
    sources["src/moldau/room/large.py"] += "\n" * (check_voice.SMALL_FILE_LINES - 3)
    assert not list(check_voice.small_files(sources))


def test_interfaces_entry_points_and_members_of_families_may_be_small() -> None:
    text = "from moldau.room import small"
    interface = {"src/moldau/room/__init__.py": "from moldau.room.small import ONE\n"}
    assert not list(check_voice.small_files(sources_of("src/moldau/room/small.py") | interface))
    assert not list(check_voice.small_files(sources_of("src/moldau/room/__init__.py", one=text)))
    assert not list(check_voice.small_files(sources_of("src/moldau/room/small.py")))
    member = "src/moldau/protocol/own/tiered/small.py"
    of_member = sources_of(member, one="from moldau.protocol.own.tiered.small import ONE")
    assert not list(check_voice.small_files(of_member))


def test_a_folder_with_many_files_is_named() -> None:
    files = [f"src/moldau/room/file{number}.py" for number in range(16)]
    assert list(check_voice.crowded_folders(files)) == [
        "src/moldau/room has 16 files: are there sub-rooms in it?"
    ]
    assert not list(check_voice.crowded_folders([*files[1:], "src/moldau/room/__init__.py"]))
    assert not list(check_voice.crowded_folders([f"tests/room/{number}.py" for number in range(20)]))
    assert not list(
        check_voice.crowded_folders([f"{check_voice.GENERATED}{number}.py" for number in range(99)])
    )


def test_every_family_has_several_files() -> None:
    for pattern in check_voice.FAMILIES:
        names = (str(path.relative_to(ROOT)) for path in ROOT.glob("src/moldau/**/*.py"))
        assert len(fnmatch.filter(names, pattern)) > 2, pattern


def test_warnings_do_not_fail_the_check() -> None:
    done = subprocess.run(
        [sys.executable, "tools/check_voice.py"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "warnings about words, folders and small files" in done.stdout.splitlines()[-1]
