"""The parts of the metadata image. The table has one row for each part. The row contains the records that
change the part and the records that restore it.

Pure.
"""
