"""Elections of leaders on request, as ``topics elect`` makes them (KIP-460)."""

from collections.abc import Collection
from typing import Any, Final

from moldau.cli.errors import CommandError
from moldau.cli.output import print_json
from moldau.client.cluster import Client, check, with_client
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.runtime.errors import ErrorCode

PREFERRED: Final = 0
UNCLEAN: Final = 1


def elect(
    bootstrap: str, timeout_s: float, names: Collection[str] | None, *, unclean: bool, as_json: bool
) -> None:
    """Elect leaders of the partitions of some topics. ``None`` means all topics.

    Partitions that need no election are left out. Raises :class:`CommandError` if an election fails. The
    other elections take effect.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        wanted = None if names is None else await _partitions(client, names)
        election = UNCLEAN if unclean else PREFERRED
        request = ElectLeadersRequest(
            election_type=election, topic_partitions=wanted, timeout_ms=client.timeout_ms
        )
        response = await client.ask(request)
        check(response.error_code, None, "electing leaders")
        return [
            {
                "topic": topic.topic,
                "partition": row.partition_id,
                "error": None if row.error_code is ErrorCode.none else row.error_code.name.upper(),
                "message": row.error_message,
            }
            for topic in response.replica_election_results
            for row in topic.partition_result
            if row.error_code is not ErrorCode.election_not_needed
        ]

    rows = with_client(bootstrap, timeout_s, work)
    failed = [row for row in rows if row["error"] is not None]
    if as_json:
        print_json(rows)
    else:
        print(f"{len(rows) - len(failed)} leaders elected")
    if failed:
        first = failed[0]
        reason = f"{first['topic']}-{first['partition']}: {first['error']}: {first['message']}"
        raise CommandError(f"{len(failed)} elections failed; {reason}")


async def _partitions(client: Client, names: Collection[str]) -> list[TopicPartitions]:
    found = []
    for topic in (await client.metadata(names)).topics:
        check(topic.error_code, None, topic.name or "")
        indexes = [row.partition_index for row in topic.partitions]
        found.append(TopicPartitions(topic=topic.name or "", partitions=indexes))
    return found
