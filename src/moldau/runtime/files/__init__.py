"""Files and folders: the ``Disk`` port, its implementation, and bounds on descriptors and memory maps."""
