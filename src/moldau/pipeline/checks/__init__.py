"""The jobs that verify diskless topics, and that scan the object store for orphans."""
