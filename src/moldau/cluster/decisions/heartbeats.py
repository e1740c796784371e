"""Heartbeats that the active controller has received. They are not stored in records. A new controller has
not received any heartbeats. Therefore every broker gets a full session before the new controller fences any
broker."""

from dataclasses import dataclass

from moldau.cluster.image.image import MetadataImage


@dataclass(slots=True)
class _Contact:
    epoch: int
    last_contact_ms: int
    metadata_offset: int = -1
    count: int = 0
    is_open: bool = True
    shutdown_offset: int | None = None


class Heartbeats:
    """Sessions by broker id. Times are in milliseconds of a clock that never steps back."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}

    def activate(self, image: MetadataImage, now_ms: int) -> None:
        """Start a session for every broker, because this controller begins a leadership."""
        self._contacts = {
            broker.broker_id: _Contact(broker.epoch, now_ms) for broker in image.brokers.values()
        }

    def touch(self, broker_id: int, epoch: int, now_ms: int, metadata_offset: int = -1) -> None:
        """Store the time of a heartbeat. ``metadata_offset`` is the offset up to which the broker has
        replayed the metadata log."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.epoch != epoch:
            contact = self._contacts[broker_id] = _Contact(epoch, now_ms)
        contact.last_contact_ms = now_ms
        contact.count += 1
        contact.is_open = True
        contact.metadata_offset = max(contact.metadata_offset, metadata_offset)

    def count(self, broker_id: int, epoch: int) -> int:
        """Return the number of heartbeats of an incarnation that this leadership has received. A registration
        counts as a heartbeat."""
        contact = self._contacts.get(broker_id)
        return contact.count if contact is not None and contact.epoch == epoch else 0

    def end_session(self, broker_id: int) -> None:
        """End the session of a broker whose process has ended. The broker's next process can register at
        once."""
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.is_open = False

    def forget(self, broker_id: int) -> None:
        """Remove the session of a broker that was unregistered."""
        self._contacts.pop(broker_id, None)

    def is_alive(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        """Whether this controller has received a heartbeat of the incarnation within the session time.

        The initial session of a new leadership does not count as a heartbeat. Otherwise a combined node could
        have this problem: it is killed while it is the active controller, it becomes the active controller
        again after its restart, and it then refuses the registration of its own broker.
        """
        contact = self._contacts.get(broker_id)
        return (
            contact is not None
            and contact.epoch == epoch
            and contact.count > 0
            and contact.is_open
            and now_ms < contact.last_contact_ms + self._session_timeout_ms
        )

    def expired(self, image: MetadataImage, now_ms: int) -> list[int]:
        """Return the ids of the unfenced brokers whose session is over."""
        return [
            broker.broker_id
            for broker in image.brokers.values()
            if not broker.fenced and now_ms >= self._deadline_ms(broker.broker_id, now_ms)
        ]

    def next_deadline_ms(self, image: MetadataImage, now_ms: int) -> int | None:
        """The earliest end of a session; ``None`` when no broker is unfenced."""
        return min(
            (
                self._deadline_ms(broker.broker_id, now_ms)
                for broker in image.brokers.values()
                if not broker.fenced
            ),
            default=None,
        )

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """Record that the broker may stop as soon as all other brokers have replayed the metadata log up to
        ``offset``."""
        contact = self._contacts.get(broker_id)
        if contact is not None and contact.shutdown_offset is None:
            contact.shutdown_offset = offset

    def may_shut_down(self, image: MetadataImage, broker_id: int) -> bool:
        """Whether every other active broker has replayed the records that move this broker's leaderships."""
        contact = self._contacts.get(broker_id)
        needed = -1 if contact is None or contact.shutdown_offset is None else contact.shutdown_offset
        others = (broker.broker_id for broker in image.active_brokers() if broker.broker_id != broker_id)
        return all(
            (other := self._contacts.get(other_id)) is not None and other.metadata_offset >= needed
            for other_id in others
        )

    def _deadline_ms(self, broker_id: int, now_ms: int) -> int:
        contact = self._contacts.get(broker_id)
        if contact is None:
            contact = self._contacts[broker_id] = _Contact(-1, now_ms)
        return contact.last_contact_ms + self._session_timeout_ms
