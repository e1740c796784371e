"""A server and a client on the simulated network. Their code uses only asyncio's transports."""

import asyncio

import pytest

from moldau.network import ClientLimits, Listener, NetworkLimits, RpcClient, SocketServer
from moldau.protocol.codec import decode_request, encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.runtime import KafkaError
from moldau.simulation.world.world import World


def answer(context, body):
    if context.api_key == 18:
        keys = [ApiVersion(api_key=16, min_version=0, max_version=5)]
        return encode_response(18, context.api_version, ApiVersionsResponse(api_keys=keys))
    request = decode_request(16, context.api_version, body)
    response = encode_response(
        16, context.api_version, ListGroupsResponse(throttle_time_ms=len(request.states_filter))
    )
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1 / (1 + len(request.states_filter)), later.set_result, response)
    return later


async def serve(_machine):
    server = SocketServer(answer, [Listener("PLAINTEXT", "server", 9092)])
    await server.start()
    await asyncio.sleep(600)
    await server.stop()


def history(seed):
    with World(seed) as world:
        server = world.host("server")
        server.start(serve)

        async def story(machine):
            client = RpcClient(machine.entropy, limits=ClientLimits(request_timeout_ms=60_000))
            await asyncio.sleep(0.1)

            def ask(number):
                return client.request(
                    "server", 9092, 16, None, ListGroupsRequest(states_filter=["x"] * number)
                )

            first = await asyncio.gather(*(ask(number) for number in range(10)))
            server.kill()
            server.start(serve)
            await asyncio.sleep(0.1)
            again = await ask(3)
            await client.close()
            return [
                response.throttle_time_ms for response in (*first, again)
            ], asyncio.get_running_loop().time()

        process = world.host("client").start(story)
        return world.run(asyncio.wait_for(process.main, 1_000))


def test_pipelining_and_reconnection_in_virtual_time():
    numbers, ended_at = history(1)
    assert numbers == [*range(10), 3]
    assert history(1) == (numbers, ended_at)


async def serve_one_client(_machine):
    limits = NetworkLimits(max_connections=1, protected_listener="PLAINTEXT")
    server = SocketServer(answer, [Listener("PLAINTEXT", "server", 9092)], limits)
    await server.start()
    await asyncio.sleep(600)
    await server.stop()


def test_one_connection_beyond_the_limit_is_left_for_an_operator():
    with World(1) as world:
        world.host("server").start(serve_one_client)

        async def story(machine):
            await asyncio.sleep(0.1)
            clients = [RpcClient(machine.entropy) for _ in range(4)]
            resident, operator, late, later = clients

            def ask(client):
                return client.request("server", 9092, 16, None, ListGroupsRequest(states_filter=["x"] * 100))

            await ask(resident)
            await ask(operator)
            with pytest.raises(KafkaError):
                await ask(late)  # the server allows one connection beyond the limit, and ``operator`` uses it
            await asyncio.sleep(2)
            # The operator's connection has been idle for some time, so ``later`` gets its place.
            await ask(later)
            await ask(resident)  # connections within the limit are not disturbed
            for client in clients:
                await client.close()

        process = world.host("client").start(story)
        world.run(asyncio.wait_for(process.main, 1_000))
