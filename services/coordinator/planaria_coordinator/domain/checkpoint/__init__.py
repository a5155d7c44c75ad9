"""Checkpoints: which engine writes which layer, when a version is sealed or given up."""
