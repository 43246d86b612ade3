"""Several processes that serve the same models at one port: one parent, and workers that it starts.

    clients ──> parent: accepts ── the connection itself ──> worker 1   a Service with its event loop and threads
                  │                                     └──> worker 2   likewise
                  └── snapshots of streams (--store memory), figures, signals, restarts

The parent accepts, since it knows who has the fewest streams: no worker is full while another has room, and nothing
waits in the queue of a worker that dies. Bytes of a stream never pass through it.
"""
