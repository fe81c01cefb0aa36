"""Data of the recipes: generators, and readers that report where a file is wrong."""
