"""``moldau produce``."""

from typing import Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError, one_line
from moldau.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    key_values,
)
from moldau.cli.output import print_json
from moldau.cli.records.input import JsonParser, LineParser, NewRecord, Parser, RawReader, lines, open_input
from moldau.cli.records.producer import ACKS_ALL, Acknowledged, ProducerSettings, TopicProducer
from moldau.cli.records.record_options import (
    Acks,
    AcksOption,
    Codec,
    CompressionOption,
    FileOption,
    HeadersOption,
    IdempotentOption,
    InputOption,
    KeyOption,
    KeySeparatorOption,
    LineKind,
    NullOption,
    PartitionOption,
)
from moldau.client.cluster import Client, with_client
from moldau.records.compression import Compression
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.errors import KafkaError

app = new_app()


@app.command("produce")
def produce(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="Topic for the records. It is created if the nodes create topics automatically.",
        ),
    ],
    file: FileOption = None,
    input_format: InputOption = LineKind.LINES,
    key_separator: KeySeparatorOption = None,
    key: KeyOption = None,
    headers: HeadersOption = None,
    null: NullOption = None,
    partition: PartitionOption = None,
    compression: CompressionOption = Codec.NONE,
    acks: AcksOption = Acks.ALL,
    idempotent: IdempotentOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Send records from stdin or a file. Each line is a record.

    Ends with exit code 1 if any record was not acknowledged.

    \b
    Example:
      echo 'alice:42' | moldau produce scores --key-separator :
    """
    settings = ProducerSettings(
        acks=ACKS_ALL if acks is Acks.MINUS_ONE or acks is Acks.ALL else int(acks),
        idempotent=_idempotent(acks, idempotent),
        compression=Compression.of_name(compression),
    )
    parser = _parser(input_format, key_separator, key, headers, null)
    reader = open_input(file)

    async def work(client: Client) -> dict[int, Acknowledged]:
        found = await client.topic(topic, create=True)
        first = SystemEntropy().randrange(len(found.leaders))
        producer = TopicProducer(client, found, settings, first_partition=first)
        await producer.start()
        await _send_all(producer, reader, parser, partition)
        return producer.acknowledged

    done = with_client(bootstrap, timeout_s, work)
    _report(topic, done, as_json)


def _idempotent(acks: Acks, wanted: bool | None) -> bool:
    all_acks = acks in (Acks.ALL, Acks.MINUS_ONE)
    if wanted and not all_acks:
        raise typer.BadParameter("--idempotent needs --acks all")
    return all_acks if wanted is None else wanted


def _parser(
    input_format: LineKind,
    key_separator: str | None,
    key: str | None,
    headers: list[str] | None,
    null: str | None,
) -> Parser:
    pairs = tuple((name, value.encode()) for name, value in key_values(headers, "--header").items())
    if input_format is LineKind.JSON:
        if key_separator is not None or key is not None or null is not None:
            raise typer.BadParameter("--format json takes keys and nulls from the JSON")
        return JsonParser(pairs)
    if key_separator is not None and key is not None:
        raise typer.BadParameter("give --key or --key-separator, not both")
    if key_separator == "":
        raise typer.BadParameter("--key-separator must not be empty")
    separator = None if key_separator is None else key_separator.encode()
    return LineParser(
        separator,
        None if null is None else null.encode(),
        None if key is None else key.encode(),
        pairs,
    )


async def _send_all(
    producer: TopicProducer, reader: RawReader, parser: Parser, partition: int | None
) -> None:
    number = 0
    async for chunk in lines(reader):
        records: list[NewRecord] = []
        problem: str | None = None
        for line in chunk:
            number += 1
            try:
                record = parser(line)
            except ValueError as error:
                problem = f"line {number}: {error}"
                break
            records.append(record if partition is None else _at(record, partition))
        try:
            # The records before an invalid line are still sent, as if each line had arrived alone.
            if records:
                await producer.send(records)
        except KafkaError as error:
            done = sum(row.records for row in producer.acknowledged.values())
            raise CommandError(f"{one_line(error)} ({done} records were acknowledged)") from error
        if problem is not None:
            raise CommandError(problem)


def _at(record: NewRecord, partition: int) -> NewRecord:
    return NewRecord(record.key, record.value, record.headers, partition, record.timestamp_ms)


def _report(topic: str, done: dict[int, Acknowledged], as_json: bool) -> None:
    total = sum(row.records for row in done.values())
    if as_json:
        rows = [
            {
                "partition": partition,
                "records": row.records,
                "first_offset": row.first_offset,
                "last_offset": row.last_offset,
            }
            for partition, row in sorted(done.items())
        ]
        print_json({"topic": topic, "records": total, "partitions": rows})
    else:
        print(f"{total} record{'' if total == 1 else 's'} to {topic}")
