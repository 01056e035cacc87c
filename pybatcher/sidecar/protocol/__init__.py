"""The wire format: frames, the state machine of a connection, codecs, flow control. Pure."""
