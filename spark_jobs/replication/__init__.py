"""Replicated detection (seed 003): equal replicas, of which leaders publish and the others hold what they have found."""
