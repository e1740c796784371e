"""The last part of the demo: the topic is moved from the WAL to Kafka segments, and exported to a table that
is queried.

``demo.py`` starts this module in a separate process with one Spark session. It consolidates the topic,
exports it to Parquet with values decoded from JSON, queries the table with Spark SQL, and prints the result
as one JSON line.
"""

import json
import sys
import time
from typing import Any

from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.session import SparkPool
from moldau.pipeline.values.formats import json_format

QUESTION = """
SELECT value.customer AS customer, count(*) AS orders, count(DISTINCT value.order) AS different,
       round(sum(value.amount), 2) AS amount
FROM parquet.`{folder}` GROUP BY customer ORDER BY amount DESC, customer
"""
TOTAL = "SELECT count(*) AS rows, count(DISTINCT value.order) AS orders FROM parquet.`{folder}`"


def main(bootstrap: str, topic: str, folder: str) -> None:
    with SparkPool() as pool:
        session = pool.session()
        began = time.monotonic()
        moved = consolidate_once(ConsolidateJob(bootstrap, (topic,)), pool.units("consolidate"))
        consolidated_s = time.monotonic() - began
        began = time.monotonic()
        job = ExportJob(bootstrap, topic, folder, "parquet", values=json_format(None))
        done = export_once(job, pool.units("export"))
        took_s = time.monotonic() - began
        total = session.sql(TOTAL.format(folder=folder)).first()
        assert total is not None
        best: list[Any] = session.sql(QUESTION.format(folder=folder)).limit(3).collect()
    found = {
        "segments": moved["segments"],
        "segment_bytes": moved["bytes"],
        "consolidated_s": consolidated_s,
        "records": done.records,
        "files": len(done.files),
        "bytes": done.size_bytes,
        "dead_letters": done.dead_letters,
        "lag": done.lag_records,
        "took_s": took_s,
        "rows": total.rows,
        "orders": total.orders,
        "best": [row.asDict() for row in best],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
