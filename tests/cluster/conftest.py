"""Tests in subfolders can import the helpers in this folder."""
