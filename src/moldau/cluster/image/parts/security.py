"""Access rights, SCRAM credentials and delegation tokens. The image contains the metadata records
themselves."""

from typing import Final

from moldau.cluster.image.changes import Changes
from moldau.cluster.image.parts.part import ImagePart
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.protocol.records import metadata as r

ScramKey = tuple[int, str]
"""A pair: the SCRAM mechanism and the name of the user."""


def _add_acl(changes: Changes[int, r.AccessControlEntryRecord], record: r.AccessControlEntryRecord) -> None:
    changes.put(record.id.int, record)


def _remove_acl(
    changes: Changes[int, r.AccessControlEntryRecord], record: r.RemoveAccessControlEntryRecord
) -> None:
    changes.remove(record.id.int)


def _set_scram(
    changes: Changes[ScramKey, r.UserScramCredentialRecord], record: r.UserScramCredentialRecord
) -> None:
    changes.put((record.mechanism, record.name), record)


def _remove_scram(
    changes: Changes[ScramKey, r.UserScramCredentialRecord], record: r.RemoveUserScramCredentialRecord
) -> None:
    changes.remove((record.mechanism, record.name))


def _set_token(changes: Changes[str, r.DelegationTokenRecord], record: r.DelegationTokenRecord) -> None:
    changes.put(record.token_id, record)


def _remove_token(
    changes: Changes[str, r.DelegationTokenRecord], record: r.RemoveDelegationTokenRecord
) -> None:
    changes.remove(record.token_id)


ACLS: Final = ImagePart[
    PersistentMap[int, r.AccessControlEntryRecord], Changes[int, r.AccessControlEntryRecord]
](
    name="acls",
    begin=Changes,
    records={r.AccessControlEntryRecord: _add_acl, r.RemoveAccessControlEntryRecord: _remove_acl},
    to_records=PersistentMap.values,
)
SCRAM_CREDENTIALS: Final = ImagePart[
    PersistentMap[ScramKey, r.UserScramCredentialRecord], Changes[ScramKey, r.UserScramCredentialRecord]
](
    name="scram_credentials",
    begin=Changes,
    records={r.UserScramCredentialRecord: _set_scram, r.RemoveUserScramCredentialRecord: _remove_scram},
    to_records=PersistentMap.values,
)
DELEGATION_TOKENS: Final = ImagePart[
    PersistentMap[str, r.DelegationTokenRecord], Changes[str, r.DelegationTokenRecord]
](
    name="delegation_tokens",
    begin=Changes,
    records={r.DelegationTokenRecord: _set_token, r.RemoveDelegationTokenRecord: _remove_token},
    to_records=PersistentMap.values,
)
