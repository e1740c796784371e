"""Server and client on the simulated network: they ask for nothing but asyncio's transports."""

import asyncio

from moldau.network import ClientLimits, Listener, RpcClient, SocketServer
from moldau.protocol.codec import decode_request, encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.simulation.world import World


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
