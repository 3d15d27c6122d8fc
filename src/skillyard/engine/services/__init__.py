"""Services: commands that listen, connections to their ports, tickets for browsers."""
