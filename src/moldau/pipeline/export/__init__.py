"""Topics as tables, each record in them once: Iceberg, or folders of Parquet files."""
