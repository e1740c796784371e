"""The process's limit of open files, and how files and connections share it."""

import logging
from typing import Final

logger = logging.getLogger(__name__)

OPEN_FILES_MIN: Final = 256
"""A node does not start if its limit of open files is below this number. Its own files and sockets would
leave too few descriptors for clients."""

_UNLIMITED: Final = 1 << 30


def _limits() -> tuple[int, int] | None:
    """The soft and the hard limit; None on a system without such limits."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        _UNLIMITED if soft == resource.RLIM_INFINITY else soft,
        _UNLIMITED if hard == resource.RLIM_INFINITY else hard,
    )


def allow_many_open_files() -> int:
    """Raise the soft limit to the hard limit, as Java does. Returns the limit, or -1 if there is no limit.

    The soft limit of a login shell is often 1,024. A few hundred partitions need more descriptors.
    """
    try:
        import resource
    except ImportError:
        return -1  # there is no such limit, because this is not a POSIX system
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # macOS refuses "unlimited", and some sandboxes refuse every change.
        logger.warning("the limit of %d open files cannot be raised to %d: %s", soft, hard, error)
        return soft
    return hard


def lack_of_open_files() -> str | None:
    """The reason why the process's limit of open files is too low for a node. The result is None when the
    limit is sufficient."""
    limits = _limits()
    if limits is None or limits[0] >= OPEN_FILES_MIN:
        return None
    return (
        f"the limit of open files is {limits[0]}, and a node needs at least {OPEN_FILES_MIN}:"
        " raise it (ulimit -n, or LimitNOFILE of the service)"
    )


def descriptors_for_files() -> int:
    """Maximum number of files that may have a descriptor at the same time. The number is a third of the
    process's limit, because the memory map of a file uses a second descriptor."""
    limits = _limits()
    return _UNLIMITED if limits is None else limits[0] // 3


def descriptors_for_maps() -> int:
    """Maximum number of descriptors for maps of ranges that are being sent, an eighth of the process's
    limit."""
    limits = _limits()
    return _UNLIMITED if limits is None else limits[0] // 8


def last_descriptor_for_clients() -> int | None:
    """Return the highest file descriptor that a connection may use, so that some descriptors are left for the
    disk. None means that there is no limit.

    The system assigns the lowest free number, so the number of a new descriptor shows how many are open.
    """
    limits = _limits()
    if limits is None or limits[0] >= _UNLIMITED:
        return None
    return limits[0] - max(64, limits[0] // 10)
