"""Seeded histories of whole nodes in virtual time: the number of histories that one core runs in a second."""

import logging
import time
from typing import Final

from bench.measuring.report import Report, rounded
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

STORIES: Final = ("quorum", "quorum-votes", "cluster", "replication", "upgrade")


def bench_seeds(report: Report, cpu_s: float) -> None:
    """Run each story for at least ``cpu_s`` CPU seconds. Raises ``RuntimeError`` if a check fails."""
    logging.disable(logging.CRITICAL)
    for name in STORIES:
        scenario, count, start = SCENARIOS[name](), 0, time.process_time()
        while time.process_time() - start < cpu_s:
            found = run_seed(scenario, count)
            if found.violations:
                raise RuntimeError(f"python -m moldau.simulation --node {name} --seed {count}")
            count += 1
        spent_s = time.process_time() - start
        row = {"story": name, "seeds": count, "seeds per CPU second": rounded(count / spent_s)}
        report.add("Seeded histories of whole nodes", row)
    logging.disable(logging.NOTSET)
