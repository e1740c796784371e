"""Chooses the subsystems of a node. No other module decides, from the roles and the configuration of a node,
which subsystems the node has.

A new feature is a separate subsystem, and gets a line in :func:`compose_broker`. The line comes after the
subsystems that the feature needs, and before the subsystems that need the feature. The contract is in
:mod:`moldau.server.subsystem`.
"""

from typing import Final, TypeVar

from moldau.cluster.decisions.kinds.table import KINDS
from moldau.coordinators.groups.hosted import GroupCoordinators
from moldau.server.context import BrokerContext, NodeContext
from moldau.server.coordinators.subsystem import HostedCoordinators, kind_context
from moldau.server.extensions import Extensions
from moldau.server.metadata.metadata_node import MetadataNode
from moldau.server.settings import consolidates, saves_logs
from moldau.server.subsystem import Contribution, Subsystem
from moldau.server.subsystems.administration import AdministrationSubsystem
from moldau.server.subsystems.backup.generation import GenerationSubsystem
from moldau.server.subsystems.backup.subsystem import BackupSubsystem
from moldau.server.subsystems.broker_registration import RegistrationSubsystem
from moldau.server.subsystems.chunks.subsystem import ChunksSubsystem
from moldau.server.subsystems.consolidation.subsystem import ConsolidationOff, ConsolidationSubsystem
from moldau.server.subsystems.controller.subsystem import ControllerSubsystem
from moldau.server.subsystems.diskless import settings as diskless_settings
from moldau.server.subsystems.diskless.subsystem import DisklessOff, DisklessSubsystem
from moldau.server.subsystems.find_coordinator import CoordinatorsSubsystem
from moldau.server.subsystems.listeners import ListenersSubsystem
from moldau.server.subsystems.monitoring import MonitoringSubsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.server.subsystems.produce_limit_warnings import ProduceLimitWarnings
from moldau.server.subsystems.record_apis import RecordsSubsystem
from moldau.server.subsystems.tiered import settings as tiered_settings
from moldau.server.subsystems.tiered.subsystem import TieredOff, TieredSubsystem
from moldau.server.subsystems.topic_creation_subsystem import TopicsSubsystem
from moldau.server.subsystems.transactions.subsystem import TransactionsSubsystem

S = TypeVar("S", bound=Subsystem)

BROKERS_ONLY: Final = ("handlers", "calls", "direct", "throttles", "kinds", "coordinators", "internal_topics")
"""The fields of ``Contribution`` that have an effect only on a broker, because only its listeners and its
partitions use them."""


class Composition:
    """A list of subsystems that is under construction."""

    def __init__(self, extensions: Extensions) -> None:
        """``extensions`` gets the contributions of all subsystems of the node."""
        self.extensions = extensions
        self.subsystems: list[Subsystem] = []

    def add(self, subsystem: S) -> S:
        """Append a subsystem, and merge its contribution. Raises ``ValueError`` if the listeners were already
        appended, because listeners serve only the handlers of subsystems before them."""
        if any(isinstance(each, ListenersSubsystem) for each in self.subsystems):
            raise ValueError(
                f"the handlers of {type(subsystem).__name__}, after the listeners, are not served"
            )
        self.subsystems.append(subsystem)
        self._merge(subsystem, subsystem.contribution())
        return subsystem

    def _merge(self, subsystem: Subsystem, contribution: Contribution) -> None:
        self.extensions.add(contribution)


class ControllerComposition(Composition):
    """The subsystems of a controller. Its listeners serve only the APIs in the table of ``ControllerApi``.

    ``add`` raises ``ValueError`` for a contribution that no controller would use.
    """

    def _merge(self, subsystem: Subsystem, contribution: Contribution) -> None:
        for name in BROKERS_ONLY:
            if getattr(contribution, name):
                raise ValueError(
                    f"{type(subsystem).__name__} contributes {name} to a controller, which does not use them:"
                    " its APIs are in server/subsystems/controller/api.py, and the rest belongs to a broker"
                )
        super()._merge(subsystem, contribution)


def compose_controller(
    context: NodeContext, metadata: MetadataNode, extensions: Extensions
) -> tuple[Subsystem, ...]:
    """Make the subsystems of a controller. If the node has no broker, which would serve the pages for
    operators, also make the subsystem that serves these pages.

    Returns an empty tuple for a node that is only a broker.
    """
    node = ControllerComposition(extensions)
    if context.config.is_controller:
        node.add(ControllerSubsystem(context, metadata))
    if not context.config.is_broker:
        node.add(MonitoringSubsystem(context, extensions))
    return tuple(node.subsystems)


def compose_broker(context: BrokerContext, extensions: Extensions) -> tuple[Subsystem, ...]:
    """Make the subsystems of a broker. Raises ``ValueError`` if a kind of topics has no kind of
    partitions."""
    broker, config = Composition(extensions), context.config
    partitions = broker.add(PartitionsSubsystem(context, extensions))
    topics = broker.add(TopicsSubsystem(context, extensions, partitions))
    diskless = tiered = None
    if diskless_settings.is_enabled(config):
        diskless = broker.add(DisklessSubsystem(context, partitions, topics))
    else:
        broker.add(DisklessOff())
    if tiered_settings.is_enabled(config):
        tiered = broker.add(TieredSubsystem(context, partitions, topics))
    else:
        broker.add(TieredOff(context, partitions))
    if diskless is not None and tiered is not None and consolidates(config):
        broker.add(ConsolidationSubsystem(context, diskless, tiered))
    else:
        broker.add(ConsolidationOff(context))
    if diskless is not None:
        broker.add(GenerationSubsystem(context, diskless, tiered))
    if diskless is not None and saves_logs(config):
        broker.add(BackupSubsystem(context, diskless, tiered))
    broker.add(ChunksSubsystem(context, partitions, tiered))
    broker.add(ProduceLimitWarnings(lambda: context.metadata.configs.broker, context.metadata.configs.topic))
    groups = broker.add(HostedCoordinators(GroupCoordinators(kind_context(context))))
    transactions = broker.add(TransactionsSubsystem(context, groups.kind.service))
    broker.add(RecordsSubsystem(context, extensions, partitions, transactions))
    broker.add(AdministrationSubsystem(context, partitions, topics))
    broker.add(CoordinatorsSubsystem(context, extensions, topics))
    broker.add(MonitoringSubsystem(context, extensions))
    broker.add(RegistrationSubsystem(context, partitions, transactions.producer_ids.set_broker_epoch))
    broker.add(ListenersSubsystem(context, extensions))
    extensions.kinds.check_complete(KINDS)
    return tuple(broker.subsystems)
