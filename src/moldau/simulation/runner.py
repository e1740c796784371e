"""``python -m moldau.simulation`` runs seeds, prints a line for each failure, and exits with 1 if there was a
failure."""

import argparse
import gc
import logging
import sys
import time
import traceback
from collections.abc import Sequence

from moldau.simulation.scenario import Result, Scenario, run_seed
from moldau.simulation.scenario_table import SCENARIOS

VIOLATIONS_SHOWN_MAX = 3
LINE_LENGTH_MAX = 300
_now_s = time.monotonic  # noqa: TID251 - the real time of a run, not the time of a simulated node


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m moldau.simulation", description="Play seeded histories of a node in virtual time."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="play this seed and show its history")
    which.add_argument("--list", action="store_true", help="print the names of all stories")
    which.add_argument("--seeds", type=int, default=100, help="play this many seeds (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--seconds", type=float, help="stop after this much real time")
    parser.add_argument(
        "--node", choices=sorted(SCENARIOS), default="node" if "node" in SCENARIOS else "tiny"
    )
    parser.add_argument("--digest", action="store_true", help="print each seed's digest: equal in every run")
    parser.add_argument("--quiet", action="store_true", help="with --seed: only the verdict, no history")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _arguments(argv)
    if arguments.list:
        print("\n".join(SCENARIOS))
        return 0
    # Do not show the node's log lines about injected faults. They would hide the results.
    logging.disable(logging.NOTSET if arguments.seed is not None else logging.CRITICAL)
    scenario = SCENARIOS[arguments.node]()
    if arguments.seed is not None:
        return _show(arguments.seed, scenario, arguments)
    started_s = _now_s()
    played = failed = 0
    virtual_s = 0.0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if arguments.seconds is not None and _now_s() - started_s > arguments.seconds:
            break
        try:
            result = run_seed(scenario, seed)
        except Exception:  # The other seeds are still played.
            played, failed = played + 1, failed + 1
            traceback.print_exc()
            print(f"{_command(arguments.node, seed)}  # raised an error", flush=True)
            continue
        if not played:
            # The first seed has imported every module. Their objects are never garbage, so the collection
            # after each seed need not visit them.
            gc.collect()
            gc.freeze()
        played += 1
        virtual_s += result.virtual_s
        if arguments.digest:
            print(f"{seed} {result.digest}")
        if result.violations:
            failed += 1
            print(_verdict(result, arguments.node), flush=True)
    real_s = _now_s() - started_s
    print(
        f"{played} seeds, {failed} failed; {virtual_s:.0f} virtual seconds in {real_s:.1f} s", file=sys.stderr
    )
    return 1 if failed else 0


def _show(seed: int, scenario: Scenario, arguments: argparse.Namespace) -> int:
    result = run_seed(scenario, seed)
    if not arguments.quiet:
        print("\n".join(result.history.lines))
    if arguments.digest:
        print(f"{seed} {result.digest}")
    for violation in result.violations:
        print(f"! {violation}")
    if not result.violations:
        print(f"seed {seed} holds: {result.record_count} records, {result.virtual_s:.1f} virtual seconds")
    return 1 if result.violations else 0


def _verdict(result: Result, node: str) -> str:
    shown = "; ".join(violation[:LINE_LENGTH_MAX] for violation in result.violations[:VIOLATIONS_SHOWN_MAX])
    more = len(result.violations) - VIOLATIONS_SHOWN_MAX
    rest = f"; and {more} more" if more > 0 else ""
    return f"{_command(node, result.seed)}  # {shown}{rest}"


def _command(node: str, seed: int) -> str:
    return f"python -m moldau.simulation --node {node} --seed {seed}"
