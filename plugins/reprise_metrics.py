"""What Airflow's StatsD or OpenTelemetry hears of a pipeline, after every task that has changed it."""

from __future__ import annotations

from airflow.sdk.observability.stats import Stats

from spark_jobs.places import place_of


def tell(name: str) -> None:
    """Gauges reprise.NAME, with the pipeline and the operator as tags; the table `metrics` has them too."""
    from spark_jobs.views.metrics import keep, measured

    place = place_of(name)
    found = measured(place)
    for metric in found:
        tags = {"pipeline": name, **({"operator": metric.operator} if metric.operator else {})}
        Stats.gauge(f"reprise.{metric.name}", metric.value, tags=tags)
    keep(place, found)
