"""The file that shows whether a broker has used its object store."""

from pathlib import Path

from moldau.diskless.known_store import FILE_NAME, KnownStore
from moldau.objects import StorageSettings
from moldau.runtime import LocalDisk


def known(
    folder: Path, url: str, class_name: str | None = None, cluster_id: str = "first", **options: str
) -> KnownStore:
    return KnownStore(LocalDisk(), str(folder), cluster_id, StorageSettings(url, class_name, options))


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


def test_another_cluster_does_not_know_the_store(tmp_path: Path) -> None:
    """Its folder may have been formatted again, and the file may have been left in it."""
    known(tmp_path, "s3://bucket/a").remember()
    assert not known(tmp_path, "s3://bucket/a", cluster_id="second").is_known()


def test_another_endpoint_is_not_known(tmp_path: Path) -> None:
    known(tmp_path, "s3://bucket", endpoint="http://one", access_key_id="1").remember()
    assert known(tmp_path, "s3://bucket", endpoint="http://one", access_key_id="2").is_known()
    assert not known(tmp_path, "s3://bucket", endpoint="http://two", access_key_id="1").is_known()


def test_without_a_file_the_answer_is_that_of_earlier_versions(tmp_path: Path) -> None:
    assert known(tmp_path, "s3://bucket/a").is_known(otherwise=True)
    known(tmp_path, "s3://bucket/b").remember()
    assert not known(tmp_path, "s3://bucket/a").is_known(otherwise=True)


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    known(tmp_path / "missing", "s3://bucket/a").remember()
    assert not known(tmp_path / "missing", "s3://bucket/a").is_known()


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"")
    assert not known(tmp_path, "s3://bucket/a").is_known()
    known(tmp_path, "s3://bucket/a").remember()
    assert known(tmp_path, "s3://bucket/a").is_known()


def test_the_file_contains_no_address(tmp_path: Path) -> None:
    known(tmp_path, "s3://user:secret@bucket").remember()
    assert b"secret" not in (tmp_path / FILE_NAME).read_bytes()
