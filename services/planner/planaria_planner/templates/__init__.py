"""The template search: every pipeline worth running on n nodes."""
