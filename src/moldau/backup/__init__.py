"""Saves the cluster's own logs in the object store, and restores a cluster from the saved logs.

Records of diskless topics are stored in objects. But only the cluster's own logs show which object contains
the records of which offsets. Therefore these logs are stored, too. :mod:`moldau.backup.cut_format` describes
the stored objects.
"""
