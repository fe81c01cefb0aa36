"""Data of the recipes: generators, and readers that say where a file is wrong."""
