"""Bulk data work on Apache Spark: reading topics, writing them, tables, consolidation, and checks.

The rooms, from the ground: ``reading`` and ``values``, then ``export``, ``source``, ``sink``,
``consolidation`` and ``checks``; beside them lies what runs jobs. Importing this package imports neither
PySpark nor PyArrow; ``requirements.py`` says what is missing.
"""
