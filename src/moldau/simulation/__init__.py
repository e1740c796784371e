"""Whole nodes in virtual time: simulated network, disks, worker threads and object store, all from one seed.

The event loop jumps from timer to timer, nothing sleeps and nothing runs in parallel, so one seed always
gives the same history. A :class:`~moldau.simulation.world.world.World` contains hosts; each host runs
processes that can be killed (``kill -9``), or lose power together with their unsynced writes. Clients record
their observations in a :class:`~moldau.simulation.history.History`, which the checker checks.
"""
