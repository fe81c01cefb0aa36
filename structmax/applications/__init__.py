"""What is built from structures and mappings: soft time warping, sorting, entropic matchings."""
