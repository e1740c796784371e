"""Export of topics to tables that contain each record once: Iceberg tables, or folders of Parquet files."""
