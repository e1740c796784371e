"""Whole nodes in virtual time. Network, disks, worker threads and object store are simulated, and one seed
determines everything.

The event loop jumps from timer to timer. No code sleeps or runs in parallel, so a seed always produces the
same history. A :class:`~moldau.simulation.world.world.World` contains hosts, and each host runs processes. A
process can be killed (``kill -9``). A host can lose power, and its unsynced writes may then be lost. Clients
record their observations in a :class:`~moldau.simulation.history.History`, which the checker checks.
"""
