"""Transactions of several producers over several partitions and a group. The faults are kills and cut
links."""
