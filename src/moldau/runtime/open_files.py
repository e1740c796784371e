"""The process's bound on open files: each partition keeps three, each connection one."""

import logging

logger = logging.getLogger(__name__)


def allow_many_open_files() -> int:
    """Raise the soft limit to the hard one, as Java does; return the limit (-1: none).

    The soft limit of a login shell is often 1,024, which a few hundred partitions use up.
    """
    try:
        import resource
    except ImportError:
        return -1  # not a POSIX system: no such limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # macOS refuses "unlimited", and some sandboxes any change.
        logger.warning("the limit of %d open files cannot be raised to %d: %s", soft, hard, error)
        return soft
    return hard


def last_descriptor_for_clients() -> int | None:
    """The highest file descriptor that a connection may take, so that the disk keeps some; None: any.

    Descriptors are given lowest first, so a new connection's tells how many there are.
    """
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    return soft - max(64, soft // 10)
