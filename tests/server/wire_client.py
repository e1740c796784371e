"""A client that sends exactly the given frames, one after the other."""

import select
import socket
import struct

from moldau.protocol.api import request_header_version, response_header_version
from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

CREATE_TOPICS, PRODUCE, METADATA_V12 = (19, 7), (0, 9), (3, 12)


class WireClient:
    """A blocking connection to a node. It is a context manager."""

    def __init__(self, bootstrap_servers, timeout_s=60.0):
        host, port = bootstrap_servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._correlation_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._socket.close()

    def send(self, api, message):
        api_key, version = api
        self._correlation_id += 1
        header = struct.pack(">hhih", api_key, version, self._correlation_id, -1)
        if request_header_version(api_key, version) == 2:
            header += b"\0"
        body = b"".join(encode_request(api_key, version, message))
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        return self._correlation_id

    def receive(self, api):
        """The next response: its correlation id and message. Raises ``EOFError`` if the node has closed the
        connection."""
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        api_key, version = api
        start = 4 + response_header_version(api_key, version)
        body = memoryview(frame)[start:]
        return struct.unpack(">i", frame[:4])[0], decode_response(api_key, version, body)

    def call(self, api, message):
        sent = self.send(api, message)
        received, response = self.receive(api)
        assert received == sent
        return response

    def _exactly(self, size):
        content = bytearray()
        while len(content) < size:
            piece = self._socket.recv(size - len(content))
            if not piece:
                raise EOFError(f"closed after {len(content)} of {size} bytes")
            content += piece
        return bytes(content)

    def create_topic(self, name, partitions=1, **configs):
        """Create a topic. ``configs`` have underscores in place of the dots in Kafka's names."""
        rows = [
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=rows)
        return self.call(CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=60_000)).topics[0]

    def send_produce(self, topic, batch, partition=0, acks=-1):
        data = PartitionProduceData(index=partition, records=batch)
        rows = [TopicProduceData(name=topic, partition_data=[data])]
        return self.send(PRODUCE, ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=rows))

    def receive_produce(self):
        """The next response, which must be for a request with one partition. Returns its correlation id and
        its row."""
        number, response = self.receive(PRODUCE)
        return number, response.responses[0].partition_responses[0]

    def has_answer(self):
        """Whether bytes have arrived that the client has not read yet."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def produce(self, topic, batch, partition=0, acks=-1):
        sent = self.send_produce(topic, batch, partition, acks)
        received, row = self.receive_produce()
        assert received == sent
        return row
