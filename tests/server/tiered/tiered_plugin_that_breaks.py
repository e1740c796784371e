"""A module that cannot be imported, for ``remote.log.*.manager.class.name``."""

1 / 0  # noqa: B018
