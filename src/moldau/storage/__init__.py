"""The local partition log in Apache Kafka's file formats, and all logs of a node.

``log`` is the log of one partition. ``log_manager`` manages all partitions in a node's log folders.
``replicated_log`` is the log with snapshots that the KRaft quorum and coordinators use. All file access goes
through the ``Disk`` port, so the package runs unchanged on a simulated disk.
"""
