"""The ports of services over HTTP: by path with a token, by host name with a ticket."""
