"""Moldau and Apache Kafka under the same loads; see ``__main__.py``."""
