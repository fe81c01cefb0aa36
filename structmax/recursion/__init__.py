"""Every dynamic program, as an ordered hypergraph: its edges, and the answers to every question about them."""
