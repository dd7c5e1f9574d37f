"""Bytes and records between nodes: the HTTP server, its two clients, their wire formats. The only door to aiohttp."""
