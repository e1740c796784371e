"""``moldau pipeline verify`` and ``orphans``."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption, key_values
from moldau.cli.output import print_json, print_table
from moldau.cli.pipeline.jobs import MasterOption, StorageOption, check_spark, run_job_once
from moldau.client.cluster import parse_bootstrap

MILLISECONDS_IN_S = 1000


def verify(
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="A diskless topic; may be repeated. All by default."
        ),
    ] = None,
    master: MasterOption = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Check that every live batch of diskless topics exists and is intact, and that no offset is missing.

    Ends with exit code 1 when something is damaged.

    \b
    Example:
      moldau pipeline verify --topic orders
    """
    parse_bootstrap(bootstrap)
    check_spark()
    from moldau.pipeline.checks.verify import VerifyJob, verify_once

    job = VerifyJob(
        bootstrap, tuple(topics or ()), timeout_s=timeout_s, storage=key_values(storage, "--storage")
    )
    report = run_job_once("verify", lambda run: verify_once(job, run), master)
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report["damages"]:
        raise typer.Exit(1)


def _show(report: dict[str, Any]) -> None:
    if report["damages"]:
        print_table(
            ("Damage", "Topic", "Partition", "First offset", "Last offset", "Object", "Reason"),
            [
                (
                    one["kind"],
                    one["topic"],
                    one["partition"],
                    one["first_offset"],
                    one["last_offset"],
                    one["object_key"] or None,
                    one["reason"],
                )
                for one in report["examples"]
            ],
        )
        print()
    print(
        f"{report['topics']} topics, {report['partitions']} partitions: {report['batches']} good batches with"
        f" {report['records']} records in {report['bytes']} bytes, {report['damages']} damages"
    )


def orphans(
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove the orphans. Otherwise they are only counted.")
    ] = False,
    older_than_s: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="SECONDS",
            min=0,
            help="Skip objects that are younger than this; by default the brokers' grace period. The "
            "smallest value is the maximum age of a commit plus the maximum difference of clocks.",
        ),
    ] = None,
    master: MasterOption = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Find objects that no diskless coordinator knows. With --delete, remove these objects.

    An object is removed if it is old enough, and if each coordinator has logged that it will never commit a
    part of the object. If a coordinator does not answer, all objects that it may know stay.

    \b
    Example:
      moldau pipeline orphans --json
    """
    parse_bootstrap(bootstrap)
    check_spark()
    from moldau.pipeline.checks.orphans import OrphansJob, reconcile_deletions

    job = OrphansJob(
        bootstrap,
        delete=delete,
        older_than_ms=None if older_than_s is None else round(older_than_s * MILLISECONDS_IN_S),
        timeout_s=timeout_s,
        storage=key_values(storage, "--storage"),
    )
    report = run_job_once("orphans", lambda run: reconcile_deletions(job, run), master)
    if as_json:
        print_json(report)
    else:
        _print_orphans(report, delete=delete)


def _print_orphans(report: Mapping[str, Any], *, delete: bool) -> None:
    for key in report["examples"]:
        print(key)
    done = f", {report['deleted']} deleted" if delete else " (--delete removes them)"
    print(
        f"{report['objects']} objects, {report['old']} old enough: {report['orphans']} orphans of"
        f" {report['orphan_bytes']} bytes{done if report['orphans'] else ''}"
        + (f", {report['unanswered']} could not be checked" if report["unanswered"] else "")
    )
    if report["tier_objects"]:
        for key in report["tier_examples"]:
            print(key)
        print(
            f"{report['tier_objects']} objects in the tier, {report['tier_old']} old enough:"
            f" {report['tier_orphans']} orphans of {report['tier_orphan_bytes']} bytes"
            + (", which the leaders remove" if report["tier_orphans"] else "")
        )
