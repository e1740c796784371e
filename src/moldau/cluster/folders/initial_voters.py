"""The voters with which a new cluster's folders are formatted (KIP-853)."""

import re
import uuid

from moldau.cluster.folders.meta_properties import FormatError, decode_uuid
from moldau.records.control import VoterEndpoint, VotersRecordEntry

_CONTROLLER = re.compile(r"^([0-9]+)@(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]+):([A-Za-z0-9_\-]+)$")


def initial_voter(node_id: int, directory_id: uuid.UUID, endpoint: VoterEndpoint) -> VotersRecordEntry:
    """Return a voter of this version with the address ``endpoint``."""
    if not endpoint.host or not endpoint.port:
        raise FormatError(
            f"Listener {endpoint.name} of node {node_id} has no host or no port; other controllers need both."
            " Set them in listeners, or in advertised.listeners."
        )
    return VotersRecordEntry(node_id, directory_id, (endpoint,))


def parse_initial_controllers(text: str, listener: str) -> tuple[VotersRecordEntry, ...]:
    """Parse ``ID@HOST:PORT:DIRECTORY_ID,…``, as in Kafka's ``--initial-controllers``.

    ``listener`` is the name of the first controller listener. Raises :class:`FormatError`.
    """
    voters = []
    for part in text.split(","):
        found = _CONTROLLER.match(part.strip())
        if found is None:
            raise FormatError(f"Initial controller '{part}' is not of the form ID@HOST:PORT:DIRECTORY_ID.")
        node_id, bracketed, host, port, directory = found.groups()
        try:
            directory_id = decode_uuid(directory)
        except ValueError as error:
            raise FormatError(f"Directory id of initial controller {node_id}: {error}.") from None
        if not 0 < int(port) < 65536:
            raise FormatError(f"Port {port} of initial controller {node_id} is not one.")
        voters.append(
            initial_voter(int(node_id), directory_id, VoterEndpoint(listener, bracketed or host, int(port)))
        )
    if len({voter.voter_id for voter in voters}) != len(voters):
        raise FormatError("A node is named twice among the initial controllers.")
    return tuple(sorted(voters, key=lambda voter: voter.voter_id))
