"""The sidecar: one engine for every process of a machine, over a unix socket."""
