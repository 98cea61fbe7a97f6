"""The labs: sources, and what makes and grades them."""
