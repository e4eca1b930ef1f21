"""What both wings read: plans, options, the version."""
