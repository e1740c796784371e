"""Bulk data jobs on Apache Spark. They read and write topics, fill tables, consolidate the WAL, and check the
store.

The packages, from the lowest: ``reading`` and ``values``, then ``export``, ``source``, ``sink``,
``consolidation`` and ``checks``. The modules of this folder run jobs. Importing this package imports neither
PySpark nor PyArrow. ``requirements.py`` reports which packages are missing.
"""
