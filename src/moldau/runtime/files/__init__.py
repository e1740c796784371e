"""Files and folders: the ``Disk`` port, its implementation, and limits on descriptors and memory maps."""
