"""``moldau pipeline consolidate``."""

import functools
from typing import Annotated, Any

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption, key_values
from moldau.cli.output import print_json, time_text, work_is_done
from moldau.cli.pipeline.jobs import MasterOption, StorageOption, check_spark, repeat_job, run_job_once
from moldau.client.cluster import parse_bootstrap

MIB = 1024**2


TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="A diskless topic; may be repeated. All by default."),
]
OnceOption = Annotated[
    bool, typer.Option("--once", help="Build the segments that are due now, then exit (the default).")
]
IntervalOption = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="SECONDS",
        min=0.1,
        help="Repeat the work at this interval, until a signal stops it.",
    ),
]
UnitOption = Annotated[
    int,
    typer.Option("--unit-mib", metavar="N", min=1, help="Size of the segments that a task builds in memory."),
]


def consolidate(
    topics: TopicsOption = None,
    once: OnceOption = False,
    interval_s: IntervalOption = None,
    master: MasterOption = None,
    unit_mib: UnitOption = 128,
    storage: StorageOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Move diskless topics from WAL objects into segments of the remote tier; readers are not affected.

    Leaders plan and publish the segments; Spark's tasks build and copy them. Any number of drivers may run at
    a time, and each may be killed at any moment.

    \b
    Example:
      moldau pipeline consolidate --once
    """
    if once and interval_s is not None:
        raise CommandError("give one of --once and --interval")
    parse_bootstrap(bootstrap)
    check_spark()
    from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once

    job = ConsolidateJob(
        bootstrap,
        tuple(topics or ()),
        unit_bytes=unit_mib * MIB,
        timeout_s=timeout_s,
        storage=key_values(storage, "--storage"),
    )
    if interval_s is not None:
        from moldau.pipeline.job_scheduler import Job

        work = functools.partial(consolidate_once, job)
        repeat_job(Job("consolidate", "consolidate", interval_s, work), master)
        return
    report = run_job_once("consolidate", lambda run: consolidate_once(job, run), master)
    with work_is_done():
        if as_json:
            print_json(report)
        else:
            _show(report)


def _show(report: dict[str, Any]) -> None:
    print(
        f"{report['segments']} segments, {report['bytes'] / MIB:.1f} MiB, left the WAL"
        f" in {report['units']} units"
    )
    for failure in report["failures"]:
        print(f"not now: {failure}")
    for held in report["held"]:
        print(
            f"not now: {held['partitions']} partitions are leased by {held['engine']}"
            f" until {time_text(held['until_ms'])}, or longer if the lease is renewed. They are planned again"
            " after that"
        )
