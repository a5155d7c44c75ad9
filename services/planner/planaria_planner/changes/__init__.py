"""From one plan to the next: candidates, their score, placement and copies."""
