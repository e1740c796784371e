"""The registry of a node's meters, by Kafka's names, and their text for Prometheus.

Kafka names a meter by group, type, name and tags (``kafka.server:type=BrokerTopicMetrics,
name=MessagesInPerSec,topic=t``). The usual rules of the JMX exporter convert this name to
``kafka_server_BrokerTopicMetrics_MessagesInPerSec_total{topic="t"}``. Dashboards for Kafka's metrics can
therefore show these metrics.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from moldau.metrics.meters import TIME_MS_BOUNDS, Counter, Gauge, Histogram

__all__ = ["CONTENT_TYPE", "SERIES_MAX", "MeterError", "Meters"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SERIES_MAX = 2_000
"""Default limit on the label combinations of a name. All combinations above the limit share a series."""

OVERFLOW = "_other_"
"""The label value of the series that is shared when a meter has too many series."""

_Meter: TypeAlias = Counter | Gauge | Histogram
_Tags: TypeAlias = tuple[tuple[str, str], ...]
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NAME_PART = re.compile(r"[^a-zA-Z0-9_]")


class MeterError(ValueError):
    """A meter is registered twice with different kinds, or has a label name that Prometheus refuses."""


class _Family:
    """All series of a metric's name."""

    __slots__ = ("help", "kind", "series")

    def __init__(self, kind: type[_Meter], help_text: str) -> None:
        self.kind = kind
        self.help = help_text
        self.series: dict[_Tags, _Meter] = {}


class Meters:
    """Meters of a Kafka group and type, e.g. ``Meters("kafka.server", "BrokerTopicMetrics")``.

    All views of a registry (see :meth:`scoped`) share its series and its text. A request for an existing
    meter returns that meter, so the order of callers does not matter. Frequently executed code keeps the
    returned meter.
    """

    __slots__ = ("_by_tag", "_families", "_prefix", "_series_max")

    def __init__(self, group: str = "kafka.server", scope: str = "", *, series_max: int = SERIES_MAX) -> None:
        self._families: dict[str, _Family] = {}
        self._by_tag: dict[tuple[str, str], dict[tuple[str, _Tags], None]] = {}
        self._series_max = series_max
        self._prefix = _prefix(group, scope)

    def scoped(self, group: str, scope: str) -> "Meters":
        """A view of this registry under another group and type."""
        other = Meters(group, scope, series_max=self._series_max)
        other._families = self._families
        other._by_tag = self._by_tag
        return other

    def counter(self, name: str, help_text: str = "", **tags: str) -> Counter:
        """A meter such as ``MessagesInPerSec``. Its name in the text ends in ``_total``."""
        meter = self._get(name + "_total", Counter, help_text, tags, Counter)
        assert isinstance(meter, Counter)
        return meter

    def gauge(self, name: str, read: Callable[[], float], help_text: str = "", **tags: str) -> Gauge:
        """A number that ``read`` returns at each scrape. A second registration replaces the first
        registration."""
        meter = self._get(name, Gauge, help_text, tags, lambda: Gauge(read))
        assert isinstance(meter, Gauge)
        meter.read = read
        return meter

    def histogram(
        self, name: str, help_text: str = "", bounds: Sequence[float] = TIME_MS_BOUNDS, **tags: str
    ) -> Histogram:
        """A distribution such as ``TotalTimeMs``."""
        meter = self._get(name, Histogram, help_text, tags, lambda: Histogram(bounds))
        assert isinstance(meter, Histogram)
        return meter

    def _get(
        self,
        name: str,
        kind: type[_Meter],
        help_text: str,
        tags: Mapping[str, str],
        make: Callable[[], _Meter],
    ) -> _Meter:
        full_name = self._prefix + _NAME_PART.sub("_", name)
        family = self._families.get(full_name)
        if family is None:
            family = self._families[full_name] = _Family(kind, help_text)
        elif family.kind is not kind:
            raise MeterError(f"{full_name} is a {family.kind.__name__}, not a {kind.__name__}")
        key = tuple(sorted(tags.items()))
        meter = family.series.get(key)
        if meter is not None:
            return meter
        for label in tags:
            if not _LABEL_NAME.fullmatch(label):
                raise MeterError(f"{full_name}: {label!r} is no label name")
        if key and len(family.series) >= self._series_max:
            # Clients can create any number of topics and client ids. If a name has too many series, further
            # label values share one series, so that memory is limited.
            key = tuple((label, OVERFLOW) for label, _ in key)
            meter = family.series.get(key)
            if meter is not None:
                return meter
        meter = family.series[key] = make()
        for tag in key:
            self._by_tag.setdefault(tag, {})[full_name, key] = None
        return meter

    def remove(self, **tags: str) -> int:
        """Remove every series, of any name and scope, that has all of these tags. Returns the number of
        removed series.

        This is used for a deleted topic, a moved partition or a closed connection. Thousands of series may be
        removed at once, and the cost does not depend on the number of other series.
        """
        wanted = set(tags.items())
        candidates = min((self._by_tag.get(tag, {}) for tag in wanted), key=len, default={})
        gone = [(name, key) for name, key in candidates if wanted.issubset(key)]
        for name, key in gone:
            family = self._families[name]
            del family.series[key]
            if not family.series:
                del self._families[name]
            for tag in key:
                of_tag = self._by_tag[tag]
                del of_tag[name, key]
                if not of_tag:
                    del self._by_tag[tag]
        return len(gone)

    def value(self, name: str, **tags: str) -> float | None:
        """Current value of a counter or gauge of this scope, or the count of a histogram. The result is None
        when there is no such meter."""
        key = tuple(sorted(tags.items()))
        for full_name in (self._prefix + name, self._prefix + name + "_total"):
            family = self._families.get(full_name)
            meter = family.series.get(key) if family else None
            if meter is not None:
                return _reading(meter)
        return None

    def render(self) -> bytes:
        """All meters of the registry in Prometheus' text format 0.0.4, in the order of their names."""
        lines: list[str] = []
        for name in sorted(self._families):
            family = self._families[name]
            if family.help:
                escaped = family.help.replace("\\", "\\\\").replace("\n", "\\n")
                lines.append(f"# HELP {name} {escaped}")
            lines.append(f"# TYPE {name} {_KINDS[family.kind]}")
            for tags, meter in sorted(family.series.items(), key=lambda item: item[0]):
                if isinstance(meter, Histogram):
                    _render_histogram(lines, name, tags, meter)
                else:
                    lines.append(f"{name}{_labels(tags)} {_number(_reading(meter))}")
        lines.append("")
        return "\n".join(lines).encode()


_KINDS: dict[type[_Meter], str] = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}


def _prefix(group: str, scope: str) -> str:
    parts = [_NAME_PART.sub("_", part) for part in (group, scope) if part]
    return "_".join(parts) + "_" if parts else ""


def _reading(meter: _Meter) -> float:
    if isinstance(meter, Histogram):
        return meter.count
    return meter.value if isinstance(meter, Counter) else meter.read()


def _labels(tags: _Tags) -> str:
    if not tags:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in tags) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _render_histogram(lines: list[str], name: str, tags: _Tags, meter: Histogram) -> None:
    seen = 0
    for bound, count in zip(meter.bounds, meter.counts, strict=False):
        seen += count
        lines.append(f"{name}_bucket{_labels((*tags, ('le', _number(bound))))} {seen}")
    count = seen + meter.counts[-1]
    lines.append(f"{name}_bucket{_labels((*tags, ('le', '+Inf')))} {count}")
    lines.append(f"{name}_sum{_labels(tags)} {_number(meter.total)}")
    lines.append(f"{name}_count{_labels(tags)} {count}")
