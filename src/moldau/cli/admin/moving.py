"""Moves of partitions. ``topics reassign`` and ``brokers decommission`` plan and begin moves, and ``topics
moves`` shows moves in progress."""

import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any, TypeAlias

import typer

from moldau.cli.admin.move_throttle import remove_throttle, set_throttle
from moldau.cli.errors import CommandError
from moldau.cli.options import confirm
from moldau.cli.output import print_json, print_table
from moldau.client.cluster import Client, with_client
from moldau.client.move_planning import NoRoomError, PlannedMove, plan_moves
from moldau.client.moves import begin_moves, cancel_moves, moves_of, placement, until_moved
from moldau.client.quorum import ENDPOINT_BROKERS, describe_cluster

DryRunOption: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")]
NoWaitOption: TypeAlias = Annotated[
    bool, typer.Option("--no-wait", help="Return when the moves have begun, not when they are done.")
]
ThrottleOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        min=1,
        metavar="BYTES",
        help=(
            "Bytes per second that each broker may send and receive for the moves. The limit is removed "
            "when the moves are done."
        ),
    ),
]
YesOption: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def make_moves(
    bootstrap: str,
    timeout_s: float,
    names: Collection[str] | None,
    *,
    replication_factor: int | None = None,
    leaving: Collection[int] = (),
    only: Collection[int] | None = None,
    dry_run: bool,
    wait: bool,
    yes: bool,
    as_json: bool,
    throttle: int | None = None,
) -> None:
    """Plan the moves, show them, ask for confirmation, start them and wait until they end.

    ``only`` contains the brokers that may have replicas. None means all brokers. ``throttle`` is the rate, in
    bytes per second, for each broker that takes part in the moves.
    """
    if throttle is not None and not wait:
        raise CommandError("--throttle needs the command to wait: it removes the throttle at the end")
    running: list[int] = []

    async def plan(client: Client) -> list[PlannedMove]:
        found = await placement(client, names)
        running.extend(found.racks)
        # A broker that was unregistered too early may still be in the list of a partition's replicas.
        named = {each for partition in found.partitions for each in partition.replicas}
        known = {*found.racks, *found.fenced, *named}
        unknown = sorted({*leaving, *(only or ())} - known)
        if unknown:
            raise CommandError(f"broker {unknown[0]} is not registered")
        left = {*leaving, *(known - set(only) if only is not None else ())}
        try:
            return plan_moves(
                found.partitions,
                found.racks,
                load_bytes=found.load_bytes,
                replication_factor=replication_factor,
                leaving=left,
            )
        except NoRoomError as error:
            raise CommandError(str(error)) from None

    moves = with_client(bootstrap, timeout_s, plan)
    if as_json:
        print_json([_described(move) for move in moves])
    else:
        _show(moves)
    if dry_run or not moves:
        return
    confirm(f"Move {len(moves)} partitions?", yes)

    with_client(
        bootstrap, timeout_s, lambda client: _carry_out(client, moves, running, wait=wait, throttle=throttle)
    )


async def _carry_out(
    client: Client,
    moves: Sequence[PlannedMove],
    running: Collection[int],
    *,
    wait: bool,
    throttle: int | None,
) -> None:
    """Begin the moves, with a throttle on the running brokers, and wait until they end."""
    throttled = _members(moves).intersection(running)
    if throttle is not None:
        await set_throttle(client, moves, throttled, throttle)
    await begin_moves(client, moves)
    if wait:
        await until_moved(client, moves, _print_progress)
    if throttle is not None:
        await remove_throttle(client, moves, throttled)


def show_moves(
    bootstrap: str,
    timeout_s: float,
    names: Collection[str],
    *,
    wait: bool,
    cancel: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show moves in progress. Then wait for their end, or cancel them, and remove their throttle."""
    moves = with_client(bootstrap, timeout_s, lambda client: moves_of(client, names))
    if as_json:
        print_json(
            [
                {key: value for key, value in _described(move).items() if key != "moved_bytes"}
                for move in moves
            ]
        )
    elif not moves:
        print("no moves in progress")
    else:
        print_table(
            ("Topic", "Partition", "From", "To"),
            [(move.partition.topic, move.partition.index, *_from_and_to(move)) for move in moves],
        )
    if not moves or not (wait or cancel):
        return
    if cancel:
        confirm(f"Cancel {len(moves)} moves?", yes)
    with_client(bootstrap, timeout_s, lambda client: _finish(client, moves, cancel=cancel))


async def _finish(client: Client, moves: Sequence[PlannedMove], *, cancel: bool) -> None:
    if cancel:
        await cancel_moves(client, moves)
        print(f"{len(moves)} moves are cancelled", file=sys.stderr, flush=True)
    else:
        await until_moved(client, moves, _print_progress)
    cluster = await describe_cluster(client, ENDPOINT_BROKERS)
    running = {row.broker_id for row in cluster.brokers if not row.is_fenced}
    # Moves that are still in progress keep their throttle.
    left = await moves_of(client, ())
    busy = {move.partition.topic for move in left}
    ended = [move for move in moves if move.partition.topic not in busy]
    await remove_throttle(client, ended, (_members(moves) & running) - _members(left))


def _members(moves: Sequence[PlannedMove]) -> set[int]:
    """The brokers that take part in moves."""
    return {each for move in moves for each in (*move.partition.replicas, *move.target)}


def _from_and_to(move: PlannedMove) -> tuple[str, str]:
    return ",".join(map(str, move.partition.replicas)), ",".join(map(str, move.target))


def _print_progress(left: int) -> None:
    print(f"{left} moves in progress" if left else "all moves are done", file=sys.stderr, flush=True)


def _described(move: PlannedMove) -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.index,
        "from": list(move.partition.replicas),
        "to": list(move.target),
        "moved_bytes": move.moved_bytes,
    }


def _show(moves: Sequence[PlannedMove]) -> None:
    if not moves:
        print("nothing to move")
        return
    print_table(
        ("Topic", "Partition", "From", "To", "Bytes to copy"),
        [
            (move.partition.topic, move.partition.index, *_from_and_to(move), move.moved_bytes)
            for move in moves
        ],
    )
    print(f"{len(moves)} partitions, {sum(move.moved_bytes for move in moves)} bytes to copy")
