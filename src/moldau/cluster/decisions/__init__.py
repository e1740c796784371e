"""The decisions of the controller, in a module for each subject. They are functions from an image and a
request to records. Pure.

A decision never changes metadata. It returns records, and the controller replays them. (Decisions about
brokers also update :class:`.heartbeats.Heartbeats`, which is not stored in records.)

If a request has several items, they are decided one after another. Each decision uses the image with the
earlier decisions. Two topics in one request are therefore treated like two requests.
"""
