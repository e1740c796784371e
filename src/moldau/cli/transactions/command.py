"""``moldau transactions``."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption, confirm
from moldau.cli.output import print_json, print_table
from moldau.client.cluster import Client, check, with_client
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages import describe_transactions as description
from moldau.protocol.messages import list_transactions as listing
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.runtime.errors import ErrorCode, KafkaError

app = new_app(no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The producer's transactional id.")]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID", help="Transactional ids of producers.")]

_RETRY_S: Final = 0.1


@app.command("list")
def list_transactions(
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only ids in this state, for instance Ongoing; may be repeated.",
        ),
    ] = None,
    longer_than_s: Annotated[
        float | None,
        typer.Option(
            "--longer-than",
            metavar="SECONDS",
            min=0,
            help="Only transactions that have been open for longer than this.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", metavar="REGEX", help="Only ids that match this regular expression as a whole."
        ),
    ] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List the transactional ids and the states of their transactions.

    \b
    Example:
      moldau transactions list --state Ongoing --longer-than 60
    """
    duration_ms = -1 if longer_than_s is None else round(longer_than_s * 1000)
    request = listing.ListTransactionsRequest(
        state_filters=states or [], duration_filter=duration_ms, transactional_id_pattern=pattern
    )
    rows = with_client(bootstrap, timeout_s, lambda client: _all(client, request))
    if as_json:
        print_json(
            [
                {"id": row.transactional_id, "state": row.transaction_state, "producer_id": row.producer_id}
                for row in rows
            ]
        )
        return
    print_table(
        ("Id", "State", "Producer"),
        [(row.transactional_id, row.transaction_state, row.producer_id) for row in rows],
    )


async def _all(client: Client, request: listing.ListTransactionsRequest) -> list[listing.TransactionState]:
    """Read the list from every broker, because each broker knows the transactions that it coordinates."""

    async def of(broker: int) -> Sequence[listing.TransactionState]:
        response = await client.ask(request, broker=broker)
        if response.error_code is ErrorCode.invalid_regular_expression:
            raise CommandError(f"the pattern {request.transactional_id_pattern} is invalid or not supported")
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"broker {broker}: {response.error_code.name.upper()}")
        if response.unknown_state_filters:
            raise CommandError(f"there is no state {', '.join(response.unknown_state_filters)}")
        rows: Sequence[listing.TransactionState] = response.transaction_states
        return rows

    brokers = [row.node_id for row in (await client.metadata([])).brokers]
    found = [row for broker in brokers for row in await client.retrying(partial(of, broker))]
    return sorted(found, key=lambda row: row.transactional_id)


@app.command("describe")
def describe(
    ids: IdsArgument,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show transactional ids: producer, state, and the partitions of an open transaction.

    \b
    Example:
      moldau transactions describe orders-1
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return [_shown(await _described(client, each)) for each in ids]

    rows = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json(rows)
        return
    columns = ("id", "state", "producer_id", "producer_epoch", "timeout_ms", "start_ms", "partitions")
    titles = ("Id", "State", "Producer", "Epoch", "Time-out ms", "Start ms", "Partitions")
    print_table(
        titles,
        [
            tuple(",".join(row[name]) or None if name == "partitions" else row[name] for name in columns)
            for row in rows
        ],
    )


async def _described(client: Client, transactional_id: str) -> description.TransactionState:
    async def attempt() -> description.TransactionState:
        found = await client.find_coordinator(
            CoordinatorKeyType.TRANSACTION, transactional_id, transactional_id
        )
        request = description.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = await client.ask(request, broker=found.endpoint)
        (row,) = response.transaction_states
        if row.error_code is ErrorCode.transactional_id_not_found:
            raise CommandError(f"there is no transactional id {transactional_id}")
        if row.error_code is not ErrorCode.none:
            raise KafkaError(row.error_code, f"{transactional_id}: {row.error_code.name.upper()}")
        state: description.TransactionState = row
        return state

    return await client.retrying(attempt)


def _shown(row: description.TransactionState) -> dict[str, Any]:
    return {
        "id": row.transactional_id,
        "state": row.transaction_state,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "timeout_ms": row.transaction_timeout_ms,
        "start_ms": row.transaction_start_time_ms if row.transaction_start_time_ms >= 0 else None,
        "partitions": [f"{topic.topic}-{index}" for topic in row.topics for index in topic.partitions],
    }


@app.command("abort")
def abort(
    transactional_id: IdArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Abort the open transaction of an id, and fence its producer, which must then be started again.

    \b
    Example:
      moldau transactions abort orders-1 --yes
    """
    confirm(f"Abort the transaction of {transactional_id} and fence its producer?", yes)

    async def work(client: Client) -> None:
        # InitProducerId for this transactional id aborts the open transaction. A producer that starts with
        # this id sends the same request.
        timeout_ms = (await _described(client, transactional_id)).transaction_timeout_ms
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        found = await client.find_coordinator(
            CoordinatorKeyType.TRANSACTION, transactional_id, transactional_id
        )
        async with asyncio.timeout(timeout_s):
            while True:
                response = await client.ask(request, broker=found.endpoint)
                if response.error_code is not ErrorCode.concurrent_transactions:
                    break
                await asyncio.sleep(_RETRY_S)
        check(response.error_code, None, transactional_id)
        print(f"fenced {transactional_id}")

    with_client(bootstrap, timeout_s, work)
