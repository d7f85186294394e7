"""The Java objects of a PySpark session: the only module that reads private attributes of pyspark.

PySpark has no public way to them. `tests/tidy/test_private_names.py` names the versions that have these attributes.
"""

from __future__ import annotations

from typing import Any


def process(session: Any) -> Any:
    """Return the process of the session's virtual machine, a `subprocess.Popen`."""
    return session.sparkContext._gateway.proc


def packages(session: Any) -> Any:
    """Return the root of Java's packages: ``packages(session).java.lang.System``."""
    return session._jvm


def hadoop_configuration(session: Any) -> Any:
    """Return the configuration with which the session opens file systems."""
    return session.sparkContext._jsc.hadoopConfiguration()


def root_pool(session: Any) -> Any:
    """Return the pool of the scheduler that holds all others."""
    return session.sparkContext._jsc.sc().taskScheduler().rootPool()


def make_active(session: Any) -> None:
    """Make a session this thread's active one in the virtual machine."""
    packages(session).org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def plan(frame: Any) -> Any:
    """Return the analyzed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


def frame_of(writer: Any) -> Any:
    """Return the frame that a writer writes."""
    return writer._df


def reports(query: Any) -> list[str]:
    """Return Spark's reports of a query's last batches as JSON, oldest first.

    The public ``recentProgress`` asks the virtual machine for each field of each report.
    """
    return [one.json() for one in query._jsq.recentProgress()]
