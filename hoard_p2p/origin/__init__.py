"""Where data sets come from: who reads an origin, and how."""
