"""Jails of commands on a server of their user, by a socket to which no network leads."""
