"""Measurements, and the clusters, jobs and reference runs that tests share with them."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
