"""The Model Context Protocol: the method table as tools, over stdio and Streamable HTTP.

It imports the SDK, which takes a second: nothing outside this package imports a module of it before a client comes.
"""
