"""The file ``cluster.json`` in the folder of a cluster of processes."""

from pathlib import Path

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.serving.cluster_folder import CLUSTER_FILE, ClusterFolder


@pytest.mark.parametrize(
    "content",
    ["", "null", "7", "[]", "{}", '{"nodes": [null]}', '{"nodes": "x"}', "[" * 100_000],
    ids=["empty", "null", "number", "list", "no fields", "no node", "text", "deep"],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / CLUSTER_FILE).write_text(content)
    with pytest.raises(CommandError, match=f"{CLUSTER_FILE} is damaged: "):
        ClusterFolder(tmp_path).known()
