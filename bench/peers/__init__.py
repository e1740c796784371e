"""Moldau and other systems under the same loads: Apache Kafka (``__main__.py``) and Tansu (``tansu.py``)."""
