"""``moldau dump-log``: shows the files of a log folder."""
