"""Whole nodes in virtual time: simulated network, disks, worker threads and object store, all from one seed.

The event loop jumps from timer to timer, no code sleeps or runs in parallel, so a seed always produces the
same history. A :class:`~moldau.simulation.world.world.World` contains hosts; each host runs processes that
can be killed (``kill -9``), or that lose their unsynced writes when the host loses power. Clients record
their observations in a :class:`~moldau.simulation.history.History`, which the checker checks.
"""
