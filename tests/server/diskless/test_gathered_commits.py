"""A file may have batches of several coordinators on one broker. One request commits the file at all of these
coordinators."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from test_diskless_calls import TOPIC, Broker, House, batch, file, with_broker

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls import CommitFileCall, CommitFileResult, CommitPlace
from moldau.coordinators.diskless.calls.subjects.commit_parts import COMMIT_PARTS, CommitParts, PartResults
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.subsystems.diskless.gathered_commits import GatheredCommits


def test_each_part_has_its_own_result(tmp_path: Path) -> None:
    async def story(broker: Broker, house: object) -> None:
        coordinators = broker.coordinators()
        await coordinators.create_partitions(0, [calls.PartitionsToCreate(TOPIC, "t", [0, 1])])
        here = replace(file("f1", batch(0, 2)), place=CommitPlace(3, 0, 0))
        elsewhere = replace(here, batches=[batch(1, 1)])
        results = dict(await coordinators.call(COMMIT_PARTS, 0, [(0, here), (7, elsewhere)]))
        assert isinstance(results[0], CommitFileResult)
        assert results[0].batches[0].base_offset == 0
        error = results[7]
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.not_coordinator
        again = dict(await coordinators.call(COMMIT_PARTS, 0, [(0, here)]))
        assert again[0] == results[0]

    with_broker(tmp_path, story)


def test_commits_over_the_network_tell_the_backlog_of_their_coordinator(tmp_path: Path) -> None:
    """The WAL backlog that slows producers is the cluster's, so each broker learns the backlogs of other
    brokers' coordinators."""

    async def story(broker: Broker, house: House) -> None:
        coordinators = broker.coordinators()
        await coordinators.create_partitions(0, [calls.PartitionsToCreate(TOPIC, "t", [0])])
        house.service.backlogs.measured({0: calls.Backlog(size_bytes=70)})
        alone = await coordinators.commit_file(0, file("f1", batch(0, 2)))
        assert alone.backlog_bytes == 70
        part = replace(file("f2", batch(0, 2)), place=CommitPlace(3, 0, 0))
        gathered = dict(await coordinators.call(COMMIT_PARTS, 0, [(0, part)]))[0]
        assert isinstance(gathered, CommitFileResult)
        assert gathered.backlog_bytes == 70

    with_broker(tmp_path, story)


class Leaders:
    """Counts requests. The response to each commit contains the number of its coordinator as the offset."""

    def __init__(self, *, is_old: bool = False, is_away: bool = False) -> None:
        self.requests: list[Sequence[int]] = []
        self._is_old = is_old
        self._is_away = is_away
        self.commits = GatheredCommits(self.send_one, self.send_parts)

    async def send_one(self, coordinator_id: int, call: CommitFileCall) -> CommitFileResult:
        self.requests.append([coordinator_id])
        return CommitFileResult([calls.CommittedBatch(ErrorCode.none, coordinator_id)])

    async def send_parts(self, parts: CommitParts) -> PartResults:
        if self._is_old:
            raise KafkaError(ErrorCode.unsupported_version, "an older broker")
        if self._is_away:
            raise ConnectionResetError
        self.requests.append([part[0] for part in parts])
        return [(part[0], await Leaders().send_one(*part)) for part in parts]

    async def commit(self) -> list[CommitFileResult | BaseException]:
        """Commit a file at three coordinators of broker 1 and at one coordinator of broker 2. Then commit
        another file."""
        one, two = file("one", batch(0, 1)), file("two", batch(0, 1))
        wanted = [(1, 0, one), (1, 1, one), (2, 2, one), (1, 3, one), (1, 0, two)]
        begun = [self.commits.commit(*each) for each in wanted]
        return await asyncio.gather(*begun, return_exceptions=True)


def offsets(results: list[CommitFileResult | BaseException]) -> list[int]:
    return [one.batches[0].base_offset for one in results if isinstance(one, CommitFileResult)]


def test_parts_of_one_file_for_one_broker_are_one_request() -> None:
    leaders = Leaders()
    assert offsets(asyncio.run(leaders.commit())) == [0, 1, 2, 3, 0]
    assert sorted(leaders.requests) == [[0], [0, 1, 3], [2]]


def test_an_older_broker_gets_a_request_for_each_part() -> None:
    leaders = Leaders(is_old=True)
    assert offsets(asyncio.run(leaders.commit())) == [0, 1, 2, 3, 0]
    assert sorted(leaders.requests) == [[0], [0], [1], [2], [3]]


def test_a_request_without_an_answer_fails_all_its_parts() -> None:
    results = asyncio.run(Leaders(is_away=True).commit())
    assert [isinstance(one, ConnectionResetError) for one in results] == [True, True, False, True, False]


def test_a_defect_is_an_answer_to_each_part() -> None:
    """Without a response, each part of the file would wait for its time-out, and would be sent
    again forever."""

    async def story() -> None:
        async def fail(*_: object) -> PartResults:
            raise ValueError("an answer that cannot be read")

        commits = GatheredCommits(fail, fail)  # type: ignore[arg-type]
        begun = [commits.commit(1, at, file("f", batch(0, 1))) for at in range(2)]
        begun.append(commits.commit(1, 0, file("g", batch(0, 1))))
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ValueError] * 3
        await commits.close()

    asyncio.run(asyncio.wait_for(story(), 5))
