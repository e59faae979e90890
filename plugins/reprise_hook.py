"""RepriseHook: where Spark is, as an Airflow connection says it."""

from __future__ import annotations

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException


class RepriseHook(BaseHook):
    """Reads a connection of type `spark`: its host is `local[*]`, or a master such as `spark://host` with its port.

    Its extra `{"ui": "http://.."}` says where people look at Spark.
    """

    conn_name_attr = "spark_conn_id"
    default_conn_name = "reprise_spark"
    conn_type = "spark"
    hook_name = "Reprise on Spark"
    # Two cores, where nobody has said anything else.
    DEFAULT_MASTER = "local[2]"

    def __init__(self, spark_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.spark_conn_id = spark_conn_id

    def master(self) -> str:
        """The master URL; without a connection, this machine."""
        connection = self._connection()
        host = (connection and connection.host) or self.DEFAULT_MASTER
        if host.startswith("local") or host == "inline":
            return host
        address = host if "://" in host else f"spark://{host}"
        return f"{address}:{connection.port}" if connection and connection.port else address

    def ui(self) -> str:
        """The address of Spark's own pages; empty where the connection says none, or one that no browser should open."""
        connection = self._connection()
        said = str(connection.extra_dejson.get("ui", "")) if connection else ""
        return said if said.startswith(("http://", "https://")) else ""

    def _connection(self) -> Connection | None:
        try:
            return self.get_connection(self.spark_conn_id)
        except AirflowNotFoundException:
            return None
