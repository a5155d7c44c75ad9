"""What several tests share: fake parts, and clusters of real processes."""
