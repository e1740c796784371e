"""Stands in for ``test/service.py``, which kafka-python's source distribution leaves out.

Its integration tests import the two names; with ``KAFKA_URI`` set they only use the first.
"""


class ExternalService:
    """A broker that is run outside the tests."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """Nothing to stop."""

    def stop(self) -> None:
        """Nothing to stop."""

    def dump_logs(self) -> None:
        """No logs are available."""


class SpawnedService:
    """A broker as a child process: not supported."""

    def __init__(self, *arguments: object, **options: object) -> None:
        raise NotImplementedError("set KAFKA_URI to the broker under test")
