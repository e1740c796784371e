"""The meaning of a broker's configuration keys for diskless topics."""

from moldau.server.settings import development_config
from moldau.server.subsystems.diskless.settings import manager_settings


def test_retention_begins_after_the_initial_task_delay_of_all_topics() -> None:
    def delay_ms(**properties: str) -> int:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        return manager_settings(
            development_config("/data", 0, given, diskless=True)
        ).retention_initial_delay_ms

    assert delay_ms() == 30_000
    assert delay_ms(log_initial_task_delay_ms="77") == 77
