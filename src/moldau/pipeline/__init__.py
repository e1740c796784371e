"""Bulk data work on Apache Spark: reading topics, writing them, tables, consolidation, and checks.

The packages, from the lowest: ``reading`` and ``values``, then ``export``, ``source``, ``sink``,
``consolidation`` and ``checks``. The modules of this folder run jobs. Importing this package imports neither
PySpark nor PyArrow. ``requirements.py`` reports which packages are missing.
"""
