"""Transactions of several producers over several partitions and a group, with kills and cut links."""
