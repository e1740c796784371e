"""The subsystems of a broker; see :mod:`moldau.server.subsystem` for their contract."""
