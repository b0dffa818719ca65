"""Software engineering: repositories with a fault, graded by hidden tests; the answer is a patch, or an agent's work with tools."""
