"""Which copies a node should make and which it may give up, from its own view alone (I7). Pure (CLUSTER 3)."""
