"""Tests on whole clusters; a package, so that clusters end with its last test."""
