"""Records of the internal topics, and the schemas by which they are encoded."""
