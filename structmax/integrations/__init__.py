"""Adapters for other libraries. Each file imports its library, and nothing here imports the files."""
