"""Records of the internal topics, and the schemas with which they are encoded."""
