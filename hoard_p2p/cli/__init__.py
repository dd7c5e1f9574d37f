"""The command line: arguments to node calls, answers to text or JSON, errors to exit statuses.

Decides nothing about data: that is the node's. Modules import only click and the light rooms at the top; what a single
command needs is imported inside it, so that `hoard --help` stays fast.
"""
