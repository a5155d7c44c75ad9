"""What fault tolerance costs while nothing fails."""
