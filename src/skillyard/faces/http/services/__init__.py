"""The ports of services over HTTP: by a path with a bearer token, by a host name with a ticket."""
