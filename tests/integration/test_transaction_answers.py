"""The responses to a fixed sequence of transactional requests are equal, field by field, to the responses of
Apache Kafka 4.2."""

import asyncio

import pytest
from transaction_answers import GOLDEN, sequence

from moldau.coordinators.diskless.state import commit
from moldau.testing import Node

APPEND_TIME = ("    log_append_time_ms: 1700000000000", "    log_append_time_ms: -1")
LOG_START = ("    log_start_offset: 0", "    log_start_offset: -1")
EXPLAINED: dict[str, list[tuple[str, str]]] = {
    # In Moldau, the response to a repeated batch is equal to the response to the first batch, and has the
    # same append time.
    "the batch again": [APPEND_TIME],
    # When a request is refused, the response of Moldau contains no log start offset.
    "a batch out of order": [LOG_START],
    "version 2: the new epoch begins at 4": [LOG_START],
    # Kafka accepts offsets of a group without a name in a transaction, although no later request can commit
    # these offsets.
    "an empty group": [("error_code: none", "error_code: invalid_group_id")],
    # Kafka lists a transactional id without a transaction as if its transaction had been open since 1970.
    "open for more than a day": [("  transaction_states:", "")],
}
"""The explained differences. For each step, they are lines of Kafka's responses and the lines of Moldau that
replace them."""
OF_DISKLESS = {"the batch again": [*EXPLAINED["the batch again"], LOG_START]}
"""The response to a repeated batch is made from the coordinator's state of the producer, and this state has
no log start offset."""


def expected(answer: str, kind: str) -> str:
    """Kafka's responses, in which the explained differences are replaced by Moldau's lines."""
    step = answer.partition(" (")[0]
    differences = EXPLAINED.get(step, [])
    if kind == "diskless":
        differences = OF_DISKLESS.get(step, differences)
    for theirs, ours in differences:
        assert theirs in answer, f"{step}: the explanation is not needed any more"
        answer = answer.replace(theirs, ours) if ours else answer[: answer.index(theirs)] + f"{theirs} none"
    return answer


@pytest.mark.parametrize("kind", ["classic", "diskless"])
def test_every_field_is_as_in_kafkas_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A diskless coordinator waits for a missing batch, because this batch may come through another broker.
    monkeypatch.setattr(commit, "PATIENCE_MS", 0)
    configs = {"diskless.enable": str(kind == "diskless").lower()}
    with Node(diskless=True, properties={"transaction.state.log.num.partitions": "4"}) as node:
        found = asyncio.run(sequence(node.bootstrap_servers, configs))
    golden = GOLDEN.read_text().removesuffix("\n").split("\n\n")
    assert found.removesuffix("\n").split("\n\n") == [expected(each, kind) for each in golden]
