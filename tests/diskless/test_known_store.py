"""The file that shows whether a broker has used its object store."""

from pathlib import Path

from moldau.diskless.known_store import FILE_NAME, KnownStore
from moldau.objects import StorageSettings
from moldau.runtime import LocalDisk


def known(folder: Path, url: str, class_name: str | None = None) -> KnownStore:
    return KnownStore(LocalDisk(), str(folder), StorageSettings(url, class_name))


def test_a_store_is_known_after_its_first_use(tmp_path: Path) -> None:
    assert not known(tmp_path, "s3://bucket/a").is_known()
    known(tmp_path, "s3://bucket/a").remember()
    assert known(tmp_path, "s3://bucket/a").is_known()


def test_another_address_or_class_is_not_known(tmp_path: Path) -> None:
    known(tmp_path, "s3://bucket/a").remember()
    assert not known(tmp_path, "s3://bucket/b").is_known()
    assert not known(tmp_path, "s3://bucket/a", "plugin.Store").is_known()
    known(tmp_path, "s3://bucket/b").remember()
    assert not known(tmp_path, "s3://bucket/a").is_known()


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"")
    assert not known(tmp_path, "s3://bucket/a").is_known()
    known(tmp_path, "s3://bucket/a").remember()
    assert known(tmp_path, "s3://bucket/a").is_known()


def test_the_file_contains_no_address(tmp_path: Path) -> None:
    known(tmp_path, "s3://user:secret@bucket").remember()
    assert b"secret" not in (tmp_path / FILE_NAME).read_bytes()
