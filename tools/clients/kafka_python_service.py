"""Replaces ``test/service.py``, which is missing in kafka-python's source distribution.

kafka-python's integration tests import both classes of this module. If ``KAFKA_URI`` is set, they use only
the first class.
"""


class ExternalService:
    """A broker that is run outside the tests."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Nothing has to be started."""

    def close(self) -> None:
        """Nothing has to be stopped."""

    def stop(self) -> None:
        """Nothing has to be stopped."""

    def dump_logs(self) -> None:
        """No logs are available."""


class SpawnedService:
    """A broker as a child process: not supported."""

    def __init__(self, *arguments: object, **options: object) -> None:
        raise NotImplementedError("set KAFKA_URI to the broker under test")
