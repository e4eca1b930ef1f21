"""Where a job runs, on which devices, under which plan: `cellplan place`."""
