"""Addresses in configuration: listeners, voters, bootstrap servers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moldau.config.definition import ConfigError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ENDPOINT = re.compile(r"^([^:/]+)://(?:\[([0-9a-fA-F:.%]*)\]|([^:/]*)):(-?[0-9]+)$")
_VOTER = re.compile(r"^([0-9]+)@(?:\[([0-9a-fA-F:.%]+)\]|([^:@]+)):([0-9]+)$")
_COUNTED_HOST = re.compile(r"[0-9a-zA-Z\-%._:]+")
_COUNT = re.compile(r"[+-]?[0-9]+")
_SERVER = re.compile(r"^(?:\[([0-9a-fA-F:.%]+)\]|([^:]+)):([0-9]+)$")


@dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    """``name://host:port``. An empty host means all interfaces."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConfiguredVoter:
    """A controller of a static quorum."""

    node_id: int
    host: str
    port: int


def parse_endpoints(key: str, entries: Sequence[str]) -> tuple[ListenerEndpoint, ...]:
    """Parse a list of endpoints. Each endpoint must have a different name and port. Raises
    :class:`ConfigError`."""
    text = ",".join(entries)
    endpoints = []
    for part in entries:
        match = _ENDPOINT.match(part)
        if match is None:
            raise ConfigError(
                key,
                f"Invalid value {text} for configuration {key}: Unable to parse {part} to a broker endpoint",
            )
        name, bracketed, host, port = match.groups()
        endpoints.append(ListenerEndpoint(name.upper(), bracketed or host or "", _port(key, text, port)))
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ConfigError(
            key, f"Invalid value {text} for configuration {key}: Each listener must have a different name"
        )
    addresses = [(endpoint.host, endpoint.port) for endpoint in endpoints if endpoint.port != 0]
    if key == "listeners" and len(set(addresses)) != len(addresses):
        raise ConfigError(
            key, f"Invalid value {text} for configuration {key}: Each listener must have a different port"
        )
    return tuple(endpoints)


def parse_protocol_map(key: str, text: str) -> Mapping[str, str]:
    """Parse a map from listener names to security protocols."""
    protocols: dict[str, str] = {}
    for part in _parts(text):
        name, colon, protocol = part.rpartition(":")
        if not colon or not name:
            raise ConfigError(
                key, f"Invalid value {text} for configuration {key}: {part} is not of the form NAME:PROTOCOL"
            )
        if protocol.strip().upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(key, f"Invalid security protocol `{protocol}` defined in {key}")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def parse_voters(key: str, entries: Sequence[str]) -> tuple[ConfiguredVoter, ...]:
    """Parse a list of ``id@host:port`` entries. The ids must be different."""
    voters = []
    for entry in entries:
        match = _VOTER.match(entry)
        if match is None:
            raise ConfigError(
                key,
                f"Invalid value {entry} for configuration {key}: it is not of the form "
                "{id}@{host}:{port}",
            )
        node_id, bracketed, host, port = match.groups()
        voters.append(ConfiguredVoter(int(node_id), bracketed or host, _port(key, entry, port)))
    if len({voter.node_id for voter in voters}) != len(voters):
        raise ConfigError(
            key, f"Invalid value {','.join(entries)} for configuration {key}: A voter's id occurs twice"
        )
    return tuple(voters)


def parse_servers(key: str, entries: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Parse a list of ``host:port`` entries."""
    servers = []
    for entry in entries:
        match = _SERVER.match(entry)
        if match is None:
            raise ConfigError(
                key, f"Invalid value {entry} for configuration {key}: it is not of the form host:port"
            )
        bracketed, host, port = match.groups()
        servers.append((bracketed or host, _port(key, entry, port)))
    return tuple(servers)


def parse_counts(key: str, text: str) -> dict[str, int]:
    """Parse a list of ``host:count`` entries."""
    counts = {}
    for part in _parts(text):
        host, colon, count = part.rpartition(":")
        if (
            not colon
            or _COUNTED_HOST.fullmatch(host.strip()) is None
            or _COUNT.fullmatch(count.strip()) is None
        ):
            raise ConfigError(
                key, f"Invalid value {text} for configuration {key}: {part} is not of the form host:count"
            )
        if not -(2**31) <= int(count) < 2**31:
            raise ConfigError(
                key, f"Invalid value {text} for configuration {key}: {count} is not a number of type INT"
            )
        counts[host.strip()] = int(count)
    return counts


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _port(key: str, text: str | None, port: str) -> int:
    if not 0 <= int(port) <= 65535:
        raise ConfigError(key, f"Invalid value {text} for configuration {key}: {port} is not a port")
    return int(port)
