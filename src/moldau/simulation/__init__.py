"""Whole nodes in virtual time: simulated network, disks, worker threads and object store, all from one seed.

The event loop jumps from timer to timer. No code sleeps or runs in parallel, so a seed always produces the
same history. A :class:`~moldau.simulation.world.world.World` contains hosts; each host runs processes. A
process can be killed (``kill -9``), and a host can lose power together with its unsynced writes. Clients
record their observations in a :class:`~moldau.simulation.history.History`, which the checker checks.
"""
