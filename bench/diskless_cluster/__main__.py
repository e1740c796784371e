"""Diskless topics over several brokers: ``python -m bench.diskless_cluster [produce] [latency] [racks]
[moves] [kills] [idle] [--quick]``.

There are three brokers in three racks and one controller, each in a process of its own on one machine. The
object store is a folder that the brokers share.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Callable
from typing import Final

import moldau
from bench.diskless_cluster.idle import measure_idle
from bench.diskless_cluster.latency import measure_latency
from bench.diskless_cluster.moves import measure_kills, measure_moves
from bench.diskless_cluster.produce import measure_produce
from bench.diskless_cluster.racks import measure_racks
from bench.diskless_cluster.sizes import FULL, QUICK, Sizes
from bench.measuring.report import Report, environment

PARTS: Final[dict[str, Callable[[Report, pathlib.Path, Sizes], None]]] = {
    "produce": measure_produce,
    "latency": measure_latency,
    "racks": measure_racks,
    "moves": measure_moves,
    "kills": measure_kills,
    "idle": measure_idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.diskless_cluster", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--quick", action="store_true", help="one short run of each part")
    parser.add_argument("--data", type=pathlib.Path, help="where the nodes and the store keep their files")
    options = parser.parse_args()
    name = "diskless-cluster-quick" if options.quick else "diskless-cluster"
    report = Report(name, environment({"moldau": moldau.__version__}))
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", dir=options.data) as folder:
        try:
            for part in options.parts or PARTS:
                PARTS[part](report, pathlib.Path(folder), QUICK if options.quick else FULL)
        except BaseException:
            report.name += "-incomplete"
            raise
        finally:
            report.print()
            report.write()


if __name__ == "__main__":
    main()
