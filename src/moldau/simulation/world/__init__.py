"""Hosts, processes, disks, links, stores and time of a simulated world."""
