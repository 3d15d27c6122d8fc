"""The methods of the server as Python methods, over one abstract ``call``."""
