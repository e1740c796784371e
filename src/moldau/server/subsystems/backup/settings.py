"""Converts the keys ``backup.*`` to the settings of the backup."""

from moldau.backup.cut_maker import CutSettings
from moldau.config.broker import BrokerConfig


def cut_settings(config: BrokerConfig) -> CutSettings:
    return CutSettings(
        interval_ms=config.integer("backup.interval.ms"), retention_ms=config.integer("backup.retention.ms")
    )
