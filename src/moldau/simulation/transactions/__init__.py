"""Transactions of several producers over several partitions and a group, through kills and cut links."""
