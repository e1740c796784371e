"""Writes docs/cli.md: how to use the command line, and a reference made from the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from moldau.cli.app import COMMANDS, command

_COMMON: Final = ("--bootstrap HOST:PORT", "--timeout SECONDS")
"""Options of all tools, which are described once."""
_PLAIN_TYPE: Final = re.compile(r" <[^|>]*>$")
"""Typer's type text of an argument that is any text or number."""

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

**Which cluster.** `--bootstrap HOST:PORT` (several with commas between), or the environment variable
`MOLDAU_BOOTSTRAP`; `127.0.0.1:9092` by default. `--timeout SECONDS` bounds the wait for an answer (30). The
tools speak Kafka's protocol, so they work with other Kafka clusters, too.

**Output.** Tables for people: drawn on a terminal, plain columns anywhere else. With `--json` one document,
or an object a line where output is a stream (`consume`, `dump-log`). What `consume --json` prints, `produce
--format json` takes: a field that is not UTF-8 is there as `key_base64`, `value_base64`.

**Exit codes.** 0: done. 1: it did not work, with one line on stderr that says why; `MOLDAU_TRACEBACK=1`
shows the stack of an error that nobody foresaw. 2: a mistake in usage. 130: interrupted. `produce` ends
with 1 if any record was not acknowledged, `dump-log` if anything in a file is wrong. What changes or
deletes something asks first on a terminal, unless told `--yes`; a script is not asked.

**Where to read from.** `consume --from` takes `beginning`, `latest`, an offset, `-10` (the last ten of each
partition) or a moment: `@2031-05-17T08:30:00Z`, `@1936773000000`. It ends where the topic ended when it
began; `--follow` goes on, `--count` and `--idle-timeout` end it.

**A node.** `moldau dev` prints `ready HOST:PORT` on stdout when it accepts clients. SIGTERM or Ctrl-C end
it cleanly with exit code 0 at any time, also while it is starting. `moldau node` takes Kafka's
configuration file ([all keys](configuration.md)); an unknown or bad key ends the start with its name and
the reason.

**Completion.** `moldau --install-completion` for the current shell, or `source <(moldau completion bash)`
(zsh, fish).

## Reference

{reference}"""


def cli_page() -> str:
    """The whole page."""
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
        f"| `{_cell(_PLAIN_TYPE.sub('', names))}` | {_cell(text)} |"
        for names, text in filter(None, records)
        if not names.endswith(_COMMON)
    ]
    if rows:
        parts.append("\n".join(["| | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(cli_page(), end="")
