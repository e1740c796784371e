"""Bulk data work on Apache Spark: reading topics, and exporting them to tables.

Importing this package imports neither PySpark nor PyArrow; ``requirements.py`` says what is missing.
"""
