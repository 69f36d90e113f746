"""Figures for those who collect them: Prometheus, which fetches, and OpenTelemetry, which is sent.

Both libraries are of the extra `ops`. Nothing is exported but the figures of `metrics.py`: none of
the process, whose memory and time hang on the events.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import install_line, opt
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.monitoring.metrics import PREFIX, PUBLIC, RAW, Figure, Sample, figures_of
from streamveil.pipelines.options.parsers import address_of, endpoint_of

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from prometheus_client.core import Metric

# What OpenTelemetry calls the units.
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "": "1"}
_USERINFO = re.compile(r"//[^/@]*@")  # a name and a password are for nobody's log

_LOGGER = logging.getLogger("streamveil")

Read = Callable[[], Iterable[Sample]]


@dataclass(frozen=True)
class Exports:
    """Which figures of a stream go where."""

    address: tuple[str, int] | None = None
    """Where Prometheus may fetch them: host and port."""
    endpoint: str | None = None
    """URL of a collector of OpenTelemetry."""
    group: str = PUBLIC

    @classmethod
    def of(cls, given: Any) -> Exports:
        """Read `METRICS_OPTIONS`. Raises ConfigurationError."""
        return cls(address_of(given), endpoint_of(given), given.metrics or PUBLIC)

    @contextmanager
    def open(self, read: Read) -> Iterator[None]:
        """Give out what `read` gives, at any moment, while the block runs.

        Raises ConfigurationError where the extra is missing, or the port cannot be had.
        """
        with ExitStack() as stack:
            if self.address is not None:
                stack.enter_context(_prometheus(self.address, self.group, read))
            if self.endpoint is not None:
                stack.enter_context(_opentelemetry(self.endpoint, figures_of(self.group), read))
            yield


@contextmanager
def _prometheus(address: tuple[str, int], group: str, read: Read) -> Iterator[None]:
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise _missing("metrics_port", "prometheus-client") from None
    host, port = address
    registry = CollectorRegistry()
    registry.register(_Collector(read))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"{opt.metrics_port}: nothing can listen on {host}:{port}: {error.strerror}: choose "
            "another port, or another address of this machine"
        ) from error
    server.handle_error = _client_lost  # type: ignore[method-assign]
    open_to_all = (
        group == RAW and not ipaddress.ip_address(str(server.server_address[0])).is_loopback
    )
    tell(
        f"{group} metrics are at {host}:{port}, /metrics"
        + (
            ": whoever reaches that may read raw figures, without a password" if open_to_all else ""
        ),
        logging.WARNING if open_to_all else logging.INFO,
    )
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _client_lost(request: object, client_address: object) -> None:
    """Whoever asked went away before the answer: the library would print a traceback."""
    _LOGGER.debug(f"a client of {opt.metrics_port} was lost", exc_info=True)


class _Collector:
    """What Prometheus's library asks when figures are fetched."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for figure, values in self._read():
            kind = CounterMetricFamily if figure.is_total else GaugeMetricFamily
            name = figure.full_name
            family = kind(name, figure.about, labels=[figure.label] if figure.label else [])
            for label, value in values.items():
                family.add_metric([label] if figure.label else [], value)
            yield family


@contextmanager
def _opentelemetry(endpoint: str, figures: Iterable[Figure[Any]], read: Read) -> Iterator[None]:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import (
            MetricExportResult,
            PeriodicExportingMetricReader,
        )
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    except ImportError:
        raise _missing("otlp_endpoint", "OpenTelemetry's SDK and exporter") from None
    if os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        raise ConfigurationError(
            f"{opt.otlp_endpoint}: nothing would be sent, since the variable "
            f"{OTEL_SDK_DISABLED} switches OpenTelemetry off: unset it, or leave the option out"
        )
    # What the variables of OpenTelemetry say of the service comes first; none says of the host.
    resource = Resource({SERVICE_NAME: PREFIX}).merge(OTELResourceDetector().detect())
    url = f"{endpoint.rstrip('/')}/v1/metrics"
    shown = _USERINFO.sub("//", url)

    class Sender(OTLPMetricExporter):
        """Says once that metrics do not arrive, and once that they do again."""

        arrive = True

        def export(self, *data: Any, **how: Any) -> MetricExportResult:
            result = super().export(*data, **how)
            before, self.arrive = self.arrive, result is MetricExportResult.SUCCESS
            if before and not self.arrive:
                _LOGGER.warning(
                    f"{opt.otlp_endpoint}: metrics do not arrive at %s, for the reason above. "
                    "The run continues and sends them again; check that a collector accepts OTLP "
                    "over HTTP there",
                    shown,
                )
            elif self.arrive and not before:
                tell(f"{opt.otlp_endpoint}: metrics arrive at {shown} again")
            return result

    provider = MeterProvider([PeriodicExportingMetricReader(Sender(url))], resource)
    meter = provider.get_meter(PREFIX)
    for figure in figures:
        make = meter.create_observable_counter if figure.is_total else meter.create_observable_gauge
        make(
            f"{PREFIX}.{figure.name}",
            [_observing(figure, read)],
            _UNITS[figure.unit],
            figure.about,
        )
    try:
        yield
    finally:
        provider.shutdown()


def _observing(
    figure: Figure[Any], read: Read
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, {figure.label: label} if figure.label else {})
            for found, values in read()
            if found is figure
            for label, value in values.items()
        ]

    return observe


def _missing(option: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{opt[option]} needs {what}, which are of an extra that is not installed: "
        f"{install_line('ops')}"
    )
