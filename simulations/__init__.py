"""Decisions of the real code over made-up clusters: a virtual clock, seeded draws, no I/O (docs/simulations.md)."""
