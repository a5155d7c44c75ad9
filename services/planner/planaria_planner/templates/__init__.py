"""The templates: every pipeline worth running on n nodes, and the search that finds them."""
