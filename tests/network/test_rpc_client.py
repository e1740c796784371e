import asyncio
import gc
import struct

import pytest
from network_harness import make_server, until

from moldau.network import ClientLimits, RpcClient
from moldau.network.client.client_connection import ClientConnection, _Sent
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import decode_request, encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.runtime import ErrorCode, KafkaError, SeededEntropy, recycled_memory
from moldau.runtime.recycled_memory import RecycledMemory


class Node:
    """Responds to ApiVersions. Responds to ListGroups with the result of ``answer``."""

    def __init__(self, answer=None, api_versions_max=4, list_groups=(0, 5)):
        self.answer = answer
        self.api_versions_max = api_versions_max
        self.list_groups = list_groups
        self.seen = []
        self.server = make_server(self.dispatch)

    def dispatch(self, context, body):
        self.seen.append((context.api_key, context.api_version))
        if context.api_key == ApiKey.API_VERSIONS:
            known = context.api_version <= self.api_versions_max
            keys = [
                ApiVersion(api_key=18, min_version=0, max_version=self.api_versions_max),
                ApiVersion(api_key=16, min_version=self.list_groups[0], max_version=self.list_groups[1]),
            ]
            error = ErrorCode.none if known else ErrorCode.unsupported_version
            response = ApiVersionsResponse(error_code=error, api_keys=keys)
            return encode_response(18, context.api_version if known else 0, response)
        request = decode_request(context.api_key, context.api_version, body)
        if self.answer is not None:
            return self.answer(context, request)
        return reply(context, len(request.states_filter))

    async def __aenter__(self):
        self.port = (await self.server.start())["PLAINTEXT"]
        return self

    async def __aexit__(self, *error):
        await self.server.stop(0)


def reply(context, number):
    return encode_response(16, context.api_version, ListGroupsResponse(throttle_time_ms=number))


def ask(client, node, number=0, **options):
    request = ListGroupsRequest(states_filter=["x"] * number)
    return client.request("127.0.0.1", node.port, ApiKey.LIST_GROUPS, None, request, **options)


def make_client(**limits):
    return RpcClient(SeededEntropy(1), limits=ClientLimits(reconnect_backoff_ms=1, **limits))


def test_requests_share_one_negotiated_connection():
    async def scenario():
        async with Node() as node:
            client = make_client()
            answers = await asyncio.gather(*(ask(client, node, n) for n in range(20)))
            assert [answer.throttle_time_ms for answer in answers] == list(range(20))
            assert node.server.counters.connections_created == 1
            assert node.seen[0] == (18, 4)
            assert set(node.seen[1:]) == {(16, 5)}
            assert await client.version_of("127.0.0.1", node.port, 16) == 5
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("newest", [0, 2, 3])
def test_older_nodes_are_asked_in_their_version(newest):
    async def scenario():
        async with Node(api_versions_max=newest, list_groups=(1, 4)) as node:
            client = make_client()
            await ask(client, node, 2)
            assert node.seen == [(18, 4), (18, newest), (16, 4)]
            await client.close()

    asyncio.run(scenario())


def test_no_common_version_is_an_error():
    async def scenario():
        async with Node(list_groups=(7, 9)) as node:
            client = make_client()
            with pytest.raises(KafkaError) as caught:
                await ask(client, node)
            assert caught.value.code is ErrorCode.unsupported_version
            await client.close()

    asyncio.run(scenario())


def test_time_out_leaves_the_connection_usable():
    async def scenario():
        late = asyncio.get_running_loop().create_future()
        answers = iter([lambda context: late, lambda context: reply(context, 7)])
        async with Node(lambda context, request: next(answers)(context)) as node:
            client = make_client()
            # the time-out includes the time for connecting
            await client.version_of("127.0.0.1", node.port, 16)
            with pytest.raises(KafkaError) as caught:
                await ask(client, node, timeout_ms=10)
            assert caught.value.code is ErrorCode.request_timed_out
            late.set_result(encode_response(16, 5, ListGroupsResponse()))
            assert (await ask(client, node)).throttle_time_ms == 7
            assert node.server.counters.connections_created == 1
            await client.close()

    asyncio.run(scenario())


def test_a_lost_connection_fails_requests_in_flight_and_is_opened_again():
    async def scenario():
        never = asyncio.get_running_loop().create_future()
        answers = iter([lambda context: never, lambda context: reply(context, 3)])
        async with Node(lambda context, request: next(answers)(context)) as node:
            client = make_client()
            waiting = asyncio.ensure_future(ask(client, node))
            await until(lambda: len(node.seen) == 2)
            node.server.connections[0].control.abort()
            with pytest.raises(KafkaError) as caught:
                await waiting
            assert caught.value.code is ErrorCode.network_exception
            assert (await ask(client, node)).throttle_time_ms == 3
            assert node.server.counters.connections_created == 2
            await client.close()

    asyncio.run(scenario())


def test_unreachable_node_is_named_and_left_alone_for_a_while():
    async def scenario():
        async with Node() as node:
            pass
        client = make_client()
        begin = asyncio.get_running_loop().time()
        for _ in range(3):
            with pytest.raises(KafkaError, match=f"127.0.0.1:{node.port}") as caught:
                await ask(client, node)
            assert caught.value.code is ErrorCode.network_exception
        peer = client._peers["127.0.0.1", node.port]
        assert peer.failures == 3
        assert peer.retry_at > begin

    asyncio.run(scenario())


def test_requests_in_flight_are_bounded():
    async def scenario():
        futures = []

        def answer(context, request):
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]

        async with Node(answer) as node:
            client = make_client(max_in_flight_requests=2)
            asked = [asyncio.ensure_future(ask(client, node, n)) for n in range(5)]
            await until(lambda: len(futures) == 2)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(futures) == 2
            for n in range(5):
                await until(lambda n=n: len(futures) > n)
                futures[n].set_result(encode_response(16, 5, ListGroupsResponse(throttle_time_ms=n)))
            assert [(await each).throttle_time_ms for each in asked] == list(range(5))
            await client.close()

    asyncio.run(scenario())


def test_nonsense_from_the_node_breaks_the_connection():
    async def scenario():
        async with Node(lambda context, request: [b"\x00"]) as node:
            client = make_client()
            with pytest.raises(KafkaError, match="malformed response"):
                await ask(client, node)
            await client.close()

    asyncio.run(scenario())


def test_a_large_response_is_received_into_the_memory_that_the_caller_gets(monkeypatch):
    memory = RecycledMemory()
    monkeypatch.setattr(recycled_memory, "PROCESS", memory)

    async def scenario():
        connection = ClientConnection("peer", None, 2**31 - 1)
        answers, blocks = [], []
        for number in range(2):
            sent = asyncio.get_running_loop().create_future()
            connection._sent[number] = _Sent(ApiKey.FETCH, 4, sent)
            body = b"".join(encode_response(ApiKey.FETCH, 4, fetched(bytes([number + 1]) * 300_000)))
            frame = struct.pack(">ii", 4 + len(body), number) + body
            while frame:
                room = connection.get_buffer(-1)
                count = min(len(room), len(frame), 50_000)
                room[:count] = frame[:count]
                connection.buffer_updated(count)
                frame = frame[count:]
                block = room.obj
            answers.append(sent.result())
            blocks.append(block)
        for number, answer in enumerate(answers):
            records = answer.responses[0].partitions[0].records
            assert bytes(records) == bytes([number + 1]) * 300_000
            assert records.obj is blocks[number], "the records were copied"
        assert memory.kept_bytes == 0
        del answers, answer, records, room, sent, block, blocks
        gc.collect()
        assert memory.kept_bytes == 2 * 512 * 1024, "the blocks of both frames are free again"

    asyncio.run(scenario())


def fetched(records):
    partition = PartitionData(partition_index=0, error_code=ErrorCode.none, high_watermark=0, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
