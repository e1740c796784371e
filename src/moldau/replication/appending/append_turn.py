"""Collects appends whose requests arrived together. These appends share one write per partition.

The driver calls ``append`` any number of times. It calls ``settle`` before any other access to a partition,
and ``end`` before a response is sent. When ``end`` raises an exception, no response to the collected requests
may be sent. The producers then get no response, and retry.
"""

from moldau.replication.partition_interface import AppendAnswer, Partition
from moldau.runtime.fair_lane import FairClient


class AppendTurn:
    """The appends that arrived on one connection in one iteration of the event loop (a *turn*). A partition
    that does not share writes appends immediately."""

    def __init__(self) -> None:
        self._unsettled: dict[Partition, None] = {}
        self._failure: Exception | None = None

    def append(
        self,
        partition: Partition,
        records: memoryview,
        required_acks: int,
        timeout_ms: int,
        client: FairClient | None = None,
    ) -> AppendAnswer:
        """Append like the partition's own ``append``, but do not write the records yet. ``records`` must stay
        valid until the turn ends."""
        if partition.shares_writes:
            outcome = partition.stage(records, required_acks, client)
            if outcome is not None:
                self._unsettled[partition] = None
                return outcome
            self.settle()
        return partition.append(records, required_acks=required_acks, timeout_ms=timeout_ms, client=client)

    def settle(self) -> None:
        """Write the staged records. If a write fails, this call and all later calls of ``settle`` and ``end``
        in this turn raise the error."""
        if self._unsettled:
            partitions, self._unsettled = self._unsettled, {}
            for partition in partitions:
                try:
                    partition.write_staged()
                except Exception as error:
                    self._failure = error
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Write the staged records and end the turn. The next append begins a new turn."""
        try:
            self.settle()
        finally:
            self._failure = None
