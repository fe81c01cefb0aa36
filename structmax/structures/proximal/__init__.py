"""Proximal maps that tie scores together before they are projected: total variation (fusedmax) and OWL (oscarmax)."""
