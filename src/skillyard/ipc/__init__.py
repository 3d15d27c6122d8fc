"""Messages with descriptors between processes of ours, over Unix sockets."""
