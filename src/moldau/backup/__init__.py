"""The cluster's own logs in the object store, and the restore of a cluster from them.

Records of diskless topics are objects; only the logs of the cluster say which object has which offset.
:mod:`moldau.backup.cut_format` describes what is stored.
"""
