"""A whole Kafka-compatible node inside a test::

    with moldau.testing.Node() as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})

With pytest, the ``moldau_node`` fixture gives each test a fresh node.
"""

from moldau.testing.node import Node

__all__ = ["Node"]
