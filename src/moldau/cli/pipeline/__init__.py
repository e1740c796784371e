"""The commands of the pipeline's jobs."""
