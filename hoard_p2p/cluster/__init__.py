"""Who is in the cluster: discovery, membership and the agent that keeps both going. The only door to zeroconf."""
