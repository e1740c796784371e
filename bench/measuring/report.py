"""Reports: tables for people (rich on a terminal, Markdown in a file), and JSON for programs."""

import json
import os
import pathlib
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measuring.measure import Sample

RESULTS = pathlib.Path("bench/results")


@dataclass(slots=True)
class Report:
    """Rows by table. Each row is a flat mapping whose keys are the columns."""

    name: str
    environment: dict[str, str]
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        table: str,
        row: dict[str, Any],
        samples: Sequence[Sample] = (),
        slices: Sequence[dict[str, float]] = (),
    ) -> None:
        """Add a row to a table. The JSON file also gets the runs (or the slices of a run) from which the row
        was computed."""
        self.tables.setdefault(table, []).append(row)
        runs = [*(asdict(sample) for sample in samples), *slices]
        self.samples.append({"table": table, "row": row, "runs": runs})

    def markdown(self) -> str:
        parts = [f"{key}: {value}  " for key, value in self.environment.items()]
        for title, rows in self.tables.items():
            columns = list(rows[0])
            parts += ["", f"### {title}", "", "| " + " | ".join(columns) + " |"]
            parts.append("|" + "---|" * len(columns))
            parts += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
        return "\n".join(parts) + "\n"

    def print(self) -> None:
        console = Console()
        for key, value in self.environment.items():
            console.print(f"{key}: {value}", highlight=False)
        for title, rows in self.tables.items():
            table = Table(title=title, title_justify="left")
            for column in rows[0]:
                table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
            for row in rows:
                table.add_row(*map(str, row.values()))
            console.print(table)

    def write(self) -> None:
        """Write ``bench/results/<name>.json`` and ``.md``."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        content = {"environment": self.environment, "tables": self.tables, "samples": self.samples}
        (RESULTS / f"{self.name}.json").write_text(json.dumps(content, indent=1) + "\n")
        (RESULTS / f"{self.name}.md").write_text(self.markdown())


def environment(versions: dict[str, str]) -> dict[str, str]:
    """The machine, and the versions of all programs that take part."""
    from bench.loads.rdkafka import version

    models = [
        line.partition(":")[2].strip()
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_kib = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    return {
        "machine": f"{os.cpu_count()} x {models[0] if models else platform.machine()}, "
        f"{memory_kib / 2**20:.0f} GiB, Linux {platform.release()}",
        "python": platform.python_version(),
        "librdkafka": version(),
        **versions,
    }


def megabytes(size_bytes: float) -> int:
    return round(size_bytes / 1_000_000)


def rounded(value: float) -> float | int:
    """About three significant digits. The runs vary so much that more digits would be useless."""
    return round(value) if value >= 100 else round(value, 1 if value >= 10 else 2)
