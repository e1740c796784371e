"""Tests in subfolders can import the helpers in this folder, which send requests over the network."""
