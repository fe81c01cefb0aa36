"""Factor graphs. The public names are listed in structmax/__init__.py."""
