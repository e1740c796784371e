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
    "node": Command("serving.node", "Run a node as its configuration file says.", serves=True),
    "storage": Command("storage.command", "Make the folders of nodes ready; save and restore a cluster."),
    "topics": Command("admin.topics", "List, create, describe, change and delete topics."),
    "produce": Command("records.produce", "Send records, a line each, from a file or stdin."),
    "consume": Command("records.consume", "Print the records of a topic."),
    "groups": Command(
        "groups.command", "See consumer groups and their lag; reset their offsets; delete them."
    ),
    "transactions": Command("transactions.command", "See transactions; abort one whose producer is gone."),
    "configs": Command(
        "admin.configs", "See and change the configuration of topics, brokers, groups and other resources."
    ),
    "records": Command("records.command", "Delete the oldest records of partitions."),
    "quorum": Command("admin.quorum", "See and change the quorum of controllers."),
    "brokers": Command("admin.brokers", "List the brokers and their log directories; move replicas."),
    "cluster": Command("admin.cluster", "See and change the cluster's features."),
    "diskless": Command("admin.diskless", "See diskless topics, their objects and their coordinators."),
    "tiered": Command("admin.tiered", "See what of topics lies in the remote tier."),
    "chunks": Command("admin.chunks", "See partition chunks; begin new ones and move old ones."),
    "dump-log": Command("dump.command", "Show what is in the files of a log folder."),
    "pipeline": Command("pipeline.command", "Run bulk jobs on Apache Spark: export topics to tables."),
    "completion": Command("completion", "Print the script that completes commands in a shell."),
}
"""Each command by its name. ``moldau --help`` imports none of the modules."""
