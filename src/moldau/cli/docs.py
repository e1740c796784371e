"""Writes docs/cli.md. The page explains how to use the command line. It also has a reference, which is made
from the commands themselves."""

import html
import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from moldau.cli.app import command
from moldau.cli.commands import COMMANDS

_COMMON: Final = ("--bootstrap HOST:PORT", "--timeout SECONDS")
"""Options that all tools have. They are described once."""
_PLAIN_TYPE: Final = re.compile(r" <[^|>]*>$")
"""Typer's name for the type of an argument that accepts any text or number."""

_PAGE: Final = """# The command line

<!-- Written by `make docs`, the reference from the commands themselves. -->

```sh
moldau dev --data ./data &                            # a node on 127.0.0.1:9092
moldau topics create orders --partitions 3
echo 'alice:{{"total": 12}}' | moldau produce orders --key-separator :
moldau consume orders --key --follow                  # until Ctrl-C
moldau consume orders --group billing --json          # as a member of a group, and commit
moldau groups describe billing                        # how far behind is it?
moldau groups reset-offsets billing --topic orders --to-earliest --execute
moldau configs alter topic orders --set retention.ms=3600000
moldau diskless topics orders                         # what is in the object store?
moldau dump-log data/orders-0 --deep                  # what is on disk?
```

**Cluster.** The option `--bootstrap HOST:PORT`, or the environment variable `MOLDAU_BOOTSTRAP`, gives the
address of a broker. Several addresses are separated by commas. The default is `127.0.0.1:9092`.
`--timeout SECONDS` limits the wait for a response (default 30). The commands use Kafka's protocol, so they
also work with other Kafka clusters.

**Output.** On a terminal, tables have borders; otherwise they are plain columns. With `--json`, the output is
one document, or one object per line for a stream (`consume`, `dump-log`). `produce --format json` accepts
the output of `consume --json`; fields that are not UTF-8 are named `key_base64` and `value_base64`.

**Exit codes.** 0 means success. 1 means a failure, and one line on stderr gives the reason.
`MOLDAU_TRACEBACK=1` adds the stack trace of an unexpected error. 2 means wrong usage, and 130 means that the
command was interrupted. `produce` ends with 1 if any record was not acknowledged, and `dump-log` ends with 1
if a file has an error.

**Confirmation.** On a terminal, commands that change or delete something ask for confirmation. With `--yes`,
or in a script, they do not ask.

**Start of consumption.** `consume --from` accepts `beginning`, `latest`, an offset, `-10` (the last ten
records of each partition) or a time: `@2031-05-17T08:30:00Z`, `@1936773000000`. The
command notes the end of each partition when it starts, and stops there. With `--follow` it continues with new
records. `--count` and `--idle-timeout` stop it earlier.

**A node.** `moldau dev` prints `ready HOST:PORT` on stdout when it accepts clients. SIGTERM or
Ctrl-C stops it cleanly with exit code 0 at any time, also while it is starting. `moldau node` reads Kafka's
configuration file ([all keys](configuration.md)). If a key is unknown or a value is invalid, the node does
not start, and names the key and the reason.

**Completion.** `moldau --install-completion` installs the completion of commands for the current shell.
`source <(moldau completion bash)` enables it only in the running shell (also for zsh and fish).

## Reference

{reference}"""


def cli_page() -> str:
    """Return the whole page docs/cli.md."""
    return _PAGE.format(reference="\n".join(_sections()))


def _sections() -> Iterator[str]:
    root: Any = command()
    with root.make_context("moldau", [], resilient_parsing=True) as context:
        for name in COMMANDS:
            found = root.get_command(context, name)
            if isinstance(found, typer.core.TyperGroup):
                for each in found.commands.values():
                    yield _section(f"moldau {name} {each.name}", each)
            else:
                yield _section(f"moldau {name}", found)


def _section(title: str, found: Any) -> str:
    text, _, example = (found.help or "").partition("\b\nExample:\n")
    parts = [f"### {title}\n", text.strip().replace("\b\n", "") + "\n"]
    if example:
        lines = [line.strip() for line in example.strip().splitlines()]
        parts.append("\n".join(["```sh", *lines, "```", ""]))
    with found.make_context(title, [], resilient_parsing=True) as context:
        records = [parameter.get_help_record(context) for parameter in found.params]
    rows = [
        f"| {_code(_PLAIN_TYPE.sub('', names))} | {_cell(text)} |"
        for names, text in filter(None, records)
        if not names.endswith(_COMMON)
    ]
    if rows:
        parts.append("\n".join(["| | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _code(text: str) -> str:
    """Return code for a table cell. A vertical bar is written as an HTML entity. If it were escaped by a
    backslash, some renderers would show the backslash."""
    if "|" not in text:
        return f"`{text}`"
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(cli_page(), end="")
