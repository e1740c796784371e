"""A whole Kafka-compatible node, or a cluster of nodes, inside a test::

    with moldau.testing.Node() as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})

    with moldau.testing.Cluster(brokers=3) as cluster:
        cluster.kill(2)

With pytest, the ``moldau_node`` fixture gives each test a fresh node.
"""

from moldau.testing.cluster import Cluster
from moldau.testing.node import Node

__all__ = ["Cluster", "Node"]
