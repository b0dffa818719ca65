"""Side effects of what a model wrote, held where they can be ended: `process` needs no Docker and no daemon."""
