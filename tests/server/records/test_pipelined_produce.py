"""A producer sends pipelined requests, mixed with requests for other partitions and with reads. The results
are the same as for single requests."""

from wire_client import PRODUCE, WireClient

from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.runtime.errors import ErrorCode
from moldau.testing import Node

FETCH = (1, 12)


def produce(number, partition=0, *, good=True):
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"%d" % number + bytes(100), ())])
    data = PartitionProduceData(index=partition, records=batch if good else batch[:-1] + b"\xff")
    return ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )


def fetch(partition):
    rows = [FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)]
    topics = [FetchTopic(topic="t", partitions=rows)]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)


def numbers(response):
    (row,) = response.responses[0].partitions
    batches = memoryview(row.records or b"")
    found = []
    for position, _ in iter_headers(batches):
        found += [int(bytes(record.value).rstrip(b"\0")) for record in iter_records(batches[position:])]
    return found


def test_a_pipelined_fetch_sees_the_appends_before_it_and_no_others():
    with Node() as node, WireClient(node.bootstrap_servers) as client:
        client.create_topic("t", partitions=2)
        story = []
        for number in range(300):
            story.append((PRODUCE, produce(number, number % 2, good=number % 7 != 3)))
            if number % 50 == 20:
                story.append((FETCH, fetch(number % 2)))
        for api, request in story:
            client.send(api, request)
        appended = {0: [], 1: []}
        sent = 0
        for api, _ in story:
            _, response = client.receive(api)
            if api == FETCH:
                partition = (sent - 1) % 2
                assert numbers(response) == appended[partition]
                continue
            row = response.responses[0].partition_responses[0]
            if sent % 7 == 3:
                assert row.error_code is ErrorCode.corrupt_message
            else:
                assert (row.error_code, row.base_offset) == (ErrorCode.none, len(appended[sent % 2]))
                appended[sent % 2].append(sent)
            sent += 1
        for partition in (0, 1):
            assert numbers(client.call(FETCH, fetch(partition))) == appended[partition]
