"""A node accepts the properties files that the documentation shows."""

import pathlib

import pytest
from page_examples import Block, blocks_of, pages

from moldau.cluster.folders.meta_properties import FILE_NAME, FormatError, read_meta_properties
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.config.properties import parse_properties
from moldau.runtime import LocalDisk

BASE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "log.dirs": "data",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
}
"""A node's file, to which a block is added that is only a part of a file."""
SOME_ID = "AAAAAAAAAAAAAAAAAAAAAA"
BLOCKS = [block for page in pages() for block in blocks_of(page) if block.language == "properties"]


def load(text: str, folder: pathlib.Path) -> None:
    """Load a file as a node does. Raises ``ConfigError`` or ``FormatError``."""
    properties = parse_properties(text)
    if "version" in properties:
        (folder / FILE_NAME).write_text(text.replace("…", SOME_ID))
        read_meta_properties(LocalDisk(), str(folder))
    else:
        BrokerConfig.from_properties(properties if "process.roles" in properties else BASE | properties)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_node_accepts_each_file(block: Block, tmp_path: pathlib.Path) -> None:
    load(block.text, tmp_path)
    # A key that is commented out is accepted, too.
    load(block.text.replace("\n# diskless.", "\ndiskless."), tmp_path)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("diskless.system.enabled=true", ConfigError),
        ("diskless.system.enable=yes", ConfigError),
        ("process.roles=controller\nnode.id=1", ConfigError),
        ("version=1\nnode.id=1", FormatError),
    ],
)
def test_a_wrong_file_is_found(wrong: str, error: type[Exception], tmp_path: pathlib.Path) -> None:
    with pytest.raises(error):
        load(wrong, tmp_path)
