"""What is built of structures and mappings: soft time warping, sorting, entropic matchings."""
