"""The table of commands, with one row for each command. This module imports only ``typing``, because the
start of a node needs it before all slow imports."""

from typing import Final, NamedTuple


class Command(NamedTuple):
    """A command, or a group of commands."""

    module: str
    """The name of the module, without the prefix ``moldau.cli.``. The variable ``app`` of this module is the
    command. ``new_app`` has made it."""
    help: str
    """The line in ``moldau --help``, which is also the help of a group."""
    serves: bool = False
    """Whether the command runs a node until a signal stops it. The signal may arrive before the node is
    imported."""


COMMANDS: Final[dict[str, Command]] = {
    "dev": Command("serving.dev", "Run a ready-to-use node with no configuration file.", serves=True),
    "node": Command("serving.node", "Run a node with a configuration file.", serves=True),
    "storage": Command("storage.command", "Make the folders of nodes ready; save and restore a cluster."),
    "topics": Command("admin.topics", "List, create, describe, change and delete topics."),
    "produce": Command("records.produce", "Send records from a file or stdin, one per line."),
    "consume": Command("records.consume", "Print the records of a topic."),
    "groups": Command(
        "groups.command", "Show consumer groups and their lag; reset their offsets; delete them."
    ),
    "transactions": Command(
        "transactions.command", "Show transactions; abort a transaction whose producer has stopped."
    ),
    "configs": Command(
        "admin.configs", "Show and change the configuration of topics, brokers, groups and other resources."
    ),
    "records": Command("records.command", "Delete the oldest records of partitions."),
    "quorum": Command("admin.quorum", "Show and change the quorum of controllers."),
    "brokers": Command("admin.brokers", "List the brokers and their log directories; move replicas."),
    "cluster": Command("admin.cluster", "Show and change the cluster's features."),
    "diskless": Command("admin.diskless", "Show diskless topics, their objects and their coordinators."),
    "tiered": Command("admin.tiered", "Show tiered topics and their remote segments."),
    "chunks": Command("admin.chunks", "Show partition chunks; begin new chunks and move old chunks."),
    "dump-log": Command("dump.command", "Show the content of the files of a log folder."),
    "pipeline": Command("pipeline.command", "Run bulk jobs on Apache Spark: export topics to tables."),
    "completion": Command("completion", "Print the script that completes commands in a shell."),
}
"""Each command by its name. ``moldau --help`` imports none of the modules."""
