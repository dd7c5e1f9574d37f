"""Keeping as many copies as were asked for: what a node should hold and does not, and what it may give up."""
