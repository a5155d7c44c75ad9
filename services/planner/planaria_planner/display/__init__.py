"""Plans and profiles for people: in the terminal, and as a drawing."""
