"""A module that cannot be imported, as ``remote.log.*.manager.class.name`` may find one."""

1 / 0  # noqa: B018
