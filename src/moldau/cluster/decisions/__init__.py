"""The decisions of the controller. There is a module for each subject. Decisions are functions that get an
image and a request, and return records. Pure.

A decision never changes metadata. It returns records, and the controller replays them. (Decisions about
brokers also update :class:`.heartbeats.Heartbeats`, which is not stored in records.)

If a request has several items, they are decided one after another. Each decision sees the results of the
earlier decisions. Two topics in one request are therefore treated like topics in two requests.
"""
