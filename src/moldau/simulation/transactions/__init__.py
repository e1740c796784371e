"""Transactions of several producers over several partitions and a group. The faults include kills, pauses and
broken links."""
