"""Requests for information about the cluster: served APIs, brokers, topics, partitions and the metadata
quorum.
"""
