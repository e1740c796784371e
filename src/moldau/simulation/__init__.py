"""Whole nodes in virtual time: simulated network, disks, worker threads and object store, all from one seed.

The event loop jumps from timer to timer, nothing sleeps and nothing runs in parallel, so that one
seed is one history. A :class:`~moldau.simulation.world.world.World` holds hosts; each host runs processes
that can be killed (``kill -9``), or lose power with what they had not synced. Clients record what
they saw in a :class:`~moldau.simulation.history.History`, which the checker judges.
"""
